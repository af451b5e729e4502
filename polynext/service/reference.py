"""A page that documents the HTTP interface, from its OpenAPI description, without scripts or other hosts."""

from html import escape
from typing import Any

HEAD = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>polynext: HTTP interface</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code{background:#8882;padding:.1em .3em}
@media(prefers-color-scheme:dark){body{background:#111;color:#eee}a{color:#8cf}}</style>
"""


def reference_page(description: dict[str, Any]) -> str:
    info = description["info"]
    lines = [HEAD, f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])} "]
    lines.append('The OpenAPI description is <a href="openapi.json">openapi.json</a>.</p>')
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            lines.append(f"<h3><code>{method.upper()} {escape(path)}</code></h3>")
            lines.append(f"<p>{escape(operation.get('description', ''))}</p><ul>")
            for status, response in sorted(operation["responses"].items()):
                lines.append(f"<li>{status}: {escape(response.get('description', ''))}</li>")
            lines.append("</ul>")
    return "\n".join(lines)
