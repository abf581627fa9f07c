"""The HTML of a report: its style, and the parts that make up the page.

Invariant: `text` escapes every string that comes from outside, and the page loads nothing: its own
policy forbids the browser to load anything.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

# Forbids every request, whatever the page contains: only its own content is shown or run.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
)

_STYLE: Final = """
:root { color-scheme: light dark;
  --paper: #ffffff; --card: #f5f7f9; --ink: #1a1f25; --soft: #56606b; --line: #d5dbe1;
  --reading: #2f7fc1; --mapping: #d9822b; --waiting: #b8417c; --loop: #3a9a6c;
  --predicted: #8b9bb0; --measured: #2f7fc1; --flow: #7d9cb8; --warn: #9a5b00; --warned: #fff6e5; }
@media screen and (prefers-color-scheme: dark) { :root {
  --paper: #14181d; --card: #1d232a; --ink: #e6eaee; --soft: #a3adb8; --line: #363f49;
  --reading: #62a8e5; --mapping: #eda45a; --waiting: #e07bab; --loop: #63c195;
  --predicted: #77879b; --measured: #62a8e5; --flow: #5f7f9d; --warn: #f2c076; --warned: #2c2517; } }
@media print { :root { color-scheme: light; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 74rem; padding: 1.5rem 1rem 4rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", sans-serif;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 0 0 .5rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .4rem; overflow-wrap: anywhere; }
h3 .soft { font-weight: 400; }
p { margin: 0 0 .75rem; max-width: 46rem; }
p, li { overflow-wrap: anywhere; }
section { margin-top: 2.5rem; }
code, .mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .86em;
  overflow-wrap: anywhere; }
.soft, figcaption, caption { color: var(--soft); font-size: .88rem; }
.soft { overflow-wrap: anywhere; }
p.lines { white-space: pre-line; }
a { color: var(--reading); }
figure { margin: 0 0 1rem; min-width: 0; }
nav { font-size: .88rem; margin-top: .5rem; display: flex; flex-wrap: wrap; gap: .25rem 1rem; }
.facts { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0 0; }
.facts div { flex: 1 1 8.75rem; background: var(--card); border-radius: .5rem;
  padding: .6rem .8rem; }
.facts dt { color: var(--soft); font-size: .82rem; }
.facts dd { margin: 0; font-size: 1.15rem; font-weight: 600; overflow-wrap: anywhere; }
.facts dd small { display: block; font-size: .8rem; font-weight: 400; color: var(--soft); }
.sentence { font-size: 1.1rem; border-left: .25rem solid var(--waiting); padding-left: .75rem;
  margin: 1.25rem 0 0; }
.advice { list-style: none; margin: 1.25rem 0 0; padding: 0; display: grid; gap: .6rem; }
.advice li { background: var(--warned); border-left: .25rem solid var(--warn);
  border-radius: 0 .4rem .4rem 0; padding: .6rem .9rem; overflow-wrap: anywhere; }
.advice b { color: var(--warn); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: .92rem; margin-bottom: 1rem; }
caption { text-align: left; padding-bottom: .35rem; overflow-wrap: anywhere; }
th, td { text-align: right; padding: .32rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; } tbody th { font-weight: 400; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--soft); font-size: .85rem; vertical-align: bottom; }
th[colspan] { text-align: center; border-bottom: 2px solid var(--line); }
td.ours { background: color-mix(in srgb, var(--measured) 9%, transparent); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 1.5rem; }
.chart { width: 100%; }
.js-plotly-plot .plotly text { fill: var(--ink) !important; }
.js-plotly-plot .plotly text.bartext-inside { fill: #0c1116 !important; }
.js-plotly-plot .plotly .xtick text, .js-plotly-plot .plotly .ytick text {
  fill: var(--soft) !important; }
.js-plotly-plot .plotly .gridlayer path, .js-plotly-plot .plotly .zerolinelayer path {
  stroke: var(--line) !important; }
.js-plotly-plot .plotly .hoverlayer rect, .js-plotly-plot .plotly .hoverlayer .hovertext path {
  fill: var(--card) !important; stroke: var(--line) !important; }
.js-plotly-plot .plotly .modebar-group { background: transparent !important; }
.js-plotly-plot .plotly .modebar-btn path { fill: var(--soft) !important; }
.plan { display: flex; overflow-x: auto; padding: .25rem 0 .5rem; }
.plan > .branch { margin: 0 auto; }
.plan code, .plan small { overflow-wrap: break-word; }
.trunk { display: flex; flex-direction: column; align-items: center; position: sticky; left: 0;
  right: 0; max-width: calc(100vw - 1.5rem); }
.cut-right .trunk { right: 2rem; }
.hint { display: none; margin: 0; }
.hint:has(+ .cut-left), .hint:has(+ .cut-right) { display: block; }
.cut-right { mask-image: linear-gradient(to left, transparent, #000 2rem); }
.cut-left { mask-image: linear-gradient(to right, transparent, #000 2rem); }
.cut-left.cut-right { mask-image:
  linear-gradient(to right, transparent, #000 2rem, #000 calc(100% - 2rem), transparent); }
.branch { display: flex; flex-direction: column; align-items: center; }
.parents { display: flex; align-items: stretch; justify-content: center; gap: .75rem;
  border-bottom: .2rem solid var(--flow); }
.parents > .branch { justify-content: flex-end; }
.node, .store, .loop { border: 1px solid var(--line); border-radius: .5rem; padding: .4rem .8rem;
  background: var(--card); text-align: center; min-width: 9.5rem; max-width: 22rem; }
.node.advised { border: 2px solid var(--warn); }
.node small, .store small, .loop small { display: block; color: var(--soft); font-size: .8rem;
  line-height: 1.35; overflow-wrap: anywhere; }
.store { border-radius: 50% / 1.1rem; padding: .9rem 1rem .7rem; border-width: 2px;
  border-color: var(--flow); }
.parents :is(.node, .store) { padding-left: .6rem; padding-right: .6rem; max-width: 18rem; }
.parents .flow { min-width: 11rem; grid-template-columns: 1fr auto 1.6fr; }
.more { color: var(--soft); padding: .5rem 1rem; white-space: nowrap; }
.loop { border: 2px solid var(--loop); border-radius: 2rem; padding: .5rem 1.4rem; }
.flow { display: grid; grid-template-columns: 1fr auto 1fr; align-items: center; gap: .35rem;
  width: 100%; min-width: 12rem; }
.flow span { grid-column: 3; font-size: .8rem; color: var(--soft); line-height: 1.25; }
.flow svg { grid-column: 2; fill: var(--flow); display: block; }
.grid { max-width: 100%; }
@media (max-width: 40rem) {
  body { padding: 1rem .75rem 3rem; font-size: .95rem; }
  table { font-size: .84rem; } th, td { padding: .3rem .35rem; }
  .node, .store, .loop { max-width: 80vw; }
  .facts { gap: .5rem; }
}
@media print { body { max-width: none; padding: 0; font-size: .85rem; } nav { display: none; }
  section { margin-top: 1.5rem; } h2, h3, caption { break-after: avoid; }
  .chart { height: auto !important; }
  .js-plotly-plot .svg-container { width: 100% !important; height: auto !important;
    aspect-ratio: var(--ratio); }
  .js-plotly-plot .svg-container .main-svg { width: 100% !important; height: 100% !important; }
  .modebar-container { display: none !important; }
  tr, figure, .wide, .node, .facts div, .advice li, .grid { break-inside: avoid; }
  .charts { grid-template-columns: 1fr 1fr; gap: .75rem; } .hint { display: none !important; }
  .wide, .plan { overflow: visible; mask-image: none; } }
"""

# Draws each chart from the values stored next to it; sizes follow the window.
_SCRIPT: Final = """
(function () {
  const charts = [];
  // A box that is wider than the page fades where it is cut off.
  const wide = document.querySelectorAll(".plan, .wide");
  const mark = box => {
    const rest = box.scrollWidth - box.clientWidth - box.scrollLeft;
    box.classList.toggle("cut-left", box.scrollLeft > 1);
    box.classList.toggle("cut-right", rest > 1);
  };
  const watch = new ResizeObserver(changes => changes.forEach(change => mark(change.target)));
  for (const box of wide) {
    box.addEventListener("scroll", () => mark(box), {passive: true});
    watch.observe(box);
  }
  for (const place of document.querySelectorAll(".chart")) {
    const figure = JSON.parse(document.getElementById(place.id + "-values").textContent);
    // Named one by one, without the buttons that need a network.
    const buttons = [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]];
    const options = {responsive: true, displaylogo: false, plotlyServerURL: "",
      displayModeBar: "hover", modeBarButtons: buttons};
    charts.push(Plotly.newPlot(place, figure.data, figure.layout, options));
  }
  // On paper charts are scaled, since drawing them again would finish too late.
  const each = change => document.querySelectorAll(".chart .svg-container").forEach(change);
  window.addEventListener("beforeprint", () => each(box => {
    box.style.setProperty("--ratio", box.offsetWidth / box.offsetHeight);
    for (const svg of box.querySelectorAll(".main-svg"))
      svg.setAttribute("viewBox", `0 0 ${box.offsetWidth} ${box.offsetHeight}`);
  }));
  window.addEventListener("afterprint", () => each(box => {
    for (const svg of box.querySelectorAll(".main-svg")) svg.removeAttribute("viewBox");
  }));
  Promise.all(charts).then(() => { document.documentElement.dataset.drawn = charts.length; });
})();
"""


def text(words: object) -> str:
    """Escape any value for use in a page and in its attributes."""
    return html.escape(str(words), quote=True)


def page(title: str, body: str, library: str) -> str:
    """Return a whole page.

    Args:
        title: Plain text.
        body: HTML.
        library: The code of the plotting library.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="windrow.report">
<title>{text(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
{body}
<script>{library}</script>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def section(name: str, title: str, parts: Iterable[str]) -> str:
    """Return a part of the page under a heading that links can point to."""
    inner = "\n".join(parts)
    return (
        f'<section id="{name}" aria-labelledby="{name}-title">\n'
        f'<h2 id="{name}-title">{text(title)}</h2>\n{inner}\n</section>'
    )


def table(
    caption: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    groups: Sequence[tuple[str, int]] = (),
) -> str:
    """Return a table of plain text; the first column names the rows.

    Args:
        caption: Caption of the table.
        headers: One header per column.
        rows: One string per column in each row.
        groups: Headings above the headers, except the first header, and how many headers each one
            spans. Columns named 'measured' by a heading, or by their headers, are highlighted.
    """
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in headers)
    above = "".join(
        f'<th scope="colgroup" colspan="{span}">{text(name)}</th>' for name, span in groups
    )
    named = [name for name, span in groups for _ in range(span)] or headers[1:]
    lines = []
    for first, *others in rows:
        cells = "".join(
            f"<td{' class=ours' if name == 'measured' else ''}>{text(cell)}</td>"
            for name, cell in zip(named, others, strict=True)
        )
        lines.append(f'<tr><th scope="row">{text(first)}</th>{cells}</tr>')
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption)}"><table>'
        f"<caption>{text(caption)}</caption><thead>"
        f"{f'<tr><td></td>{above}</tr>' if above else ''}<tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def facts(pairs: Iterable[tuple[str, str, str]]) -> str:
    """Return prominent figures: each has a name, a value and a remark."""
    cells = []
    for name, value, more in pairs:
        small = f"<small>{text(more)}</small>" if more else ""
        cells.append(f"<div><dt>{text(name)}</dt><dd>{text(value)}{small}</dd></div>")
    return f'<dl class="facts">{"".join(cells)}</dl>'


def chart(name: str, figure: dict[str, Any], height_px: int, alt: str, caption: str) -> str:
    """Return a chart that the page draws.

    Args:
        name: Id of the chart in the page.
        figure: The `data` and `layout` for Plotly.
        height_px: Its height; its width follows the page.
        alt: Text alternative for readers who do not see it.
        caption: Caption of the chart.
    """
    # No string in it may end the script that holds it.
    values = json.dumps(figure, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        f'<figure><div class="chart" id="{name}" role="img" aria-label="{text(alt)}"'
        f' style="height: {height_px}px"></div>'
        f'<noscript><p class="soft">{text(alt)} (Drawing it needs JavaScript.)</p></noscript>'
        f'<script type="application/json" id="{name}-values">{values}</script>'
        f"<figcaption>{text(caption)}</figcaption></figure>"
    )
