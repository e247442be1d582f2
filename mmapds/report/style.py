"""The style of a report's page: one column of text, charts side by side where there is room, light and dark."""

CSS = """
:root {
  color-scheme: light dark;
  --ground: #fcfcfb; --card: #ffffff; --ink: #1b1f24; --soft: #575e68; --line: #d5d9df; --faint: #eceff2;
  --one: #0b6aa8; --two: #b8540a; --three: #4c7a34;
  --good: #0b6aa8; --fair: #8a6100; --poor: #b03a06;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171a; --card: #1b1f24; --ink: #e6e9ed; --soft: #a3abb6; --line: #3a414a; --faint: #262b31;
    --one: #62b5ec; --two: #f0a35e; --three: #a3cf85;
    --good: #62b5ec; --fair: #e3bb5c; --poor: #ff9b6a;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
}
main, header, footer { max-width: 1120px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 44px; }
.kind { color: var(--soft); font-size: 14px; margin: 0 0 4px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.015em; overflow-wrap: anywhere; }
h2 { font-size: 21px; line-height: 1.3; margin: 0 0 6px; letter-spacing: -0.01em; }
h3 { font-size: 15px; margin: 26px 0 8px; }
section { margin-top: 26px; padding-top: 28px; border-top: 1px solid var(--line); }
p { margin: 0 0 12px; max-width: 74ch; }
.note { color: var(--soft); font-size: 14px; line-height: 1.5; }
nav { margin: 18px 0 6px; font-size: 14.5px; display: flex; flex-wrap: wrap; gap: 4px 18px; }
a { color: var(--one); text-decoration-thickness: 1px; text-underline-offset: 3px; }
.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(132px, 1fr)); gap: 10px; margin: 22px 0; padding: 0;
}
.tiles > div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px 12px; }
.tiles dt { color: var(--soft); font-size: 13px; }
.tiles dd { margin: 0; font-size: 21px; font-weight: 600; letter-spacing: -0.01em; font-variant-numeric: tabular-nums; }
.tiles small { font-size: 13px; font-weight: 400; color: var(--soft); }
.verdicts { list-style: none; margin: 0 0 8px; padding: 0; max-width: 84ch; }
.verdicts li { display: grid; grid-template-columns: 52px 1fr; gap: 12px; padding: 6px 0; }
.verdicts b { font-size: 13px; line-height: 25px; text-align: right; }
.good { color: var(--good); } .fair { color: var(--fair); } .poor { color: var(--poor); }
.charts {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: 22px 28px;
  margin: 18px 0 4px; align-items: start;
}
figure { margin: 0; max-width: 440px; min-width: 0; }
figcaption { font-size: 14px; line-height: 1.45; color: var(--soft); margin-top: 6px; }
figcaption b { color: var(--ink); font-weight: 600; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg text { font-family: inherit; font-variant-numeric: tabular-nums; }
svg image { image-rendering: pixelated; }
.scroll { overflow-x: auto; margin: 14px 0 6px; }
table { border-collapse: collapse; font-size: 14px; line-height: 1.4; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 0 5px 22px; text-align: right; white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--line); }
tbody th { font-weight: 400; white-space: normal; overflow-wrap: anywhere; min-width: 13ch; max-width: 60ch; }
tbody tr + tr > * { border-top: 1px solid var(--faint); }
td.text, th.text { text-align: left; white-space: normal; min-width: 7ch; }
tr.chosen > * { font-weight: 600; }
details { margin: 8px 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
summary { padding: 9px 14px; font-size: 14px; cursor: pointer; overflow-wrap: anywhere; }
summary span { color: var(--soft); }
pre {
  margin: 0; padding: 4px 14px 14px; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
footer { color: var(--soft); font-size: 13px; margin-top: 44px; padding-bottom: 40px; }
@media (max-width: 480px) {
  main, header, footer { padding: 0 16px; }
  header { padding-top: 28px; }
  h1 { font-size: 25px; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .verdicts li { grid-template-columns: 42px 1fr; gap: 10px; }
  th, td { padding-left: 16px; }
}
@media print { details { break-inside: avoid; } nav { display: none; } }
""".strip()
