"""A page that documents the HTTP interface, from its OpenAPI description, without scripts or other hosts."""

from html import escape
from typing import Any

HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>polynext: HTTP interface</title>
<style>:root{color-scheme:light dark;background:light-dark(#f7f4ee,#14120f);color:light-dark(#211d18,#f1ebe2)}
body{font:16px/1.55 Inter,system-ui,sans-serif;max-width:52rem;margin:2rem auto 4rem;padding:0 1rem}
a{color:light-dark(#b4511f,#f0925c)}h1,h2{font:400 2rem/1.2 Georgia,serif}h2{font-size:1.4rem;margin-top:2.5rem}
h3{font-size:1rem;margin:1.5rem 0 .25rem;padding-top:1rem;border-top:1px solid light-dark(#e2dbcf,#302b25)}
p{margin:.4rem 0}ul{margin:.4rem 0;padding-left:1.2rem;font-size:.875rem;color:light-dark(#6a6258,#a89e91)}
code{font:.9em ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}
pre{padding:.9rem 1.1rem;overflow-x:auto;border-radius:.7rem;background:light-dark(#fffdf9,#1d1a16)}</style>
"""
EXAMPLE = """<h2>Try it</h2>
<p>Look at the networks, and at what a client needs to know of one, in a browser or with curl:</p>
<pre><code>curl {url}/v1/networks
curl {url}/v1/networks/{network}</code></pre>
<p>The client makes keys, sends the evaluation keys, encrypts an image, waits for the job and decrypts its answer:</p>
<pre><code>polynext encrypted ask {url} --network {network} picture.png</code></pre>
<p>The same in Python:</p>
<pre><code id="python">import polynext

client = polynext.encrypted.connect("{url}", network="{network}")
print(client.predict(["picture.png"]).labels)</code></pre>
<p>A client of your own sends <a href="#announce_keys">POST /v1/keys</a>, then the bytes of each part, then
<a href="#submit_job">PUT /v1/jobs/{{job}}</a> with a ciphertext, and reads the job's events and its answer. Keys and
ciphertexts are files of Microsoft SEAL.</p>
"""


def reference_page(description: dict[str, Any], url: str, network: str) -> str:
    """The page of a service at an address. Its example uses one of the service's networks."""
    info = description["info"]
    lines = [HEAD, f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])} "]
    lines.append('The OpenAPI description is <a href="openapi.json">openapi.json</a>.</p>')
    lines.append(EXAMPLE.format(url=escape(url.rstrip("/")), network=escape(network)))
    lines.append("<h2>Requests</h2>")
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            name = f"<code>{method.upper()} {escape(path)}</code>"
            if method == "get" and "{" not in path:
                name = f'<a href="{path.lstrip("/")}">{name}</a>'
            place = operation["operationId"].partition("_v1_")[0]
            lines.append(f'<h3 id="{place}">{name}</h3><p>{escape(operation.get("description", ""))}</p><ul>')
            for status, response in sorted(operation["responses"].items()):
                lines.append(f"<li>{status}: {escape(response.get('description', ''))}</li>")
            lines.append("</ul>")
    return "\n".join(lines)
