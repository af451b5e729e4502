"""Formulas as MathML, which browsers draw by themselves, in a font that comes with the site."""

from html import escape
from pathlib import Path
from typing import Any

import ziamath
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

FONT = Path(ziamath.__file__).parent / "fonts" / "STIXTwoMath-Regular.ttf"


def mathml(text: str, block: bool) -> str:
    markup = convert(text.strip(), display="block" if block else "inline")
    return markup.replace("<math", f'<math alttext="{escape(text.strip())}"', 1)


def inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(mathml(node.astext(), block=False))
    raise nodes.SkipNode


def displayed(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="formula">{mathml(node.astext(), block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    app.config.html_math_renderer = "mathml"
    app.connect("builder-inited", lambda app: app.config.html_static_path.append(str(FONT)))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
