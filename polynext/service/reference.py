"""A plain page of the HTTP interface, made from its OpenAPI description, with no script and nothing from elsewhere."""

from html import escape
from typing import Any

HEAD = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>polynext: the HTTP interface</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code{background:#8882;padding:.1em .3em}
@media(prefers-color-scheme:dark){body{background:#111;color:#eee}a{color:#8cf}}</style>
"""


def reference_page(description: dict[str, Any]) -> str:
    about = description["info"]
    lines = [HEAD, f"<h1>{escape(about['title'])}</h1><p>{escape(about['description'])} "]
    lines.append('The whole description is <a href="openapi.json">openapi.json</a>.</p>')
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            lines.append(f"<h3><code>{method.upper()} {escape(path)}</code></h3>")
            lines.append(f"<p>{escape(operation.get('description', ''))}</p><ul>")
            for status, answer in sorted(operation["responses"].items()):
                lines.append(f"<li>{status}: {escape(answer.get('description', ''))}</li>")
            lines.append("</ul>")
    return "\n".join(lines)
