"""Texts with which a submission might try to become a part of the page."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from grader.check.record import Record
from grader.diagnosis.finding import LIKELY, RANKS, SAID, VALUES
from grader.diagnosis.spans import COMMUNICATING, COMPUTING, TIMED, WAITING

ELSEWHERE = "http://attacker.example"
RUN = "window.ran=1"
PAYLOADS = (
    f"<script>{RUN}</script>",
    f'"><img src={ELSEWHERE}/a.png onerror={RUN}>',
    f"' onmouseover='{RUN}' x='",
    f'" onfocus="{RUN}" autofocus tabindex="1" x="',
    f"</style><style>@import url({ELSEWHERE}/a.css); * {{ display: none }}</style>",
    f"</title></head><body onload={RUN}>",
    f"</pre></code></td></tr></table></details><h1>You have 100 points</h1><script>{RUN}</script>",
    f"--><script>{RUN}</script><!--",
    f"]]><svg onload={RUN}><script>{RUN}</script>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s><set onend={RUN}></svg>",
    f"<base href={ELSEWHERE}/>",
    f"<meta http-equiv=refresh content='0;url={ELSEWHERE}'>",
    f"<link rel=stylesheet href={ELSEWHERE}/a.css><link rel=preconnect href={ELSEWHERE}>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>' src=javascript:parent.{RUN}></iframe>",
    f"<object data=javascript:{RUN}></object><embed src={ELSEWHERE}>",
    f"<a href=javascript:{RUN}>Go on</a><form action={ELSEWHERE}><button>Go on</button></form>",
    f"javascript:{RUN}",
    f"<details open ontoggle={RUN}><summary>Go on</summary></details>",
    f"<template><script>{RUN}</script></template><noscript><p title='</noscript><script>{RUN}'>",
    f"&lt;script&gt;{RUN}&lt;/script&gt; &#60;script&#62;{RUN} &amp;lt;b&amp;gt;",
    f"${{{RUN}}} $title $main {{{{ 7*7 }}}} {{% raw %}} <%= {RUN} %> #{{{RUN}}}",
    f"\x1b[31mred\x1b]8;;{ELSEWHERE}\x07link\x1b]8;;\x07\x1b[2J\x00\x08\x7f",
    "\u202eThis text runs to the left\u202c\u2066 and this is apart \u2069\u200f\u061c",
    "zero\u200bwidth\u200c\u200d\u2060\ufeff\u00ad spaces, \ud800 half a character",
    "W" * 500,
    "/".join(["a_path_without_any_blank"] * 30),
    "שלום עולם, مرحبا بالعالم, 数据并行" * 8,
    "\n".join(["many lines", "\tindented", "  twice", "x" * 200]),
    'alert("a dialog"); confirm(1); print()',
    "<dialog open>Enter your password: <input></dialog><marquee>100 points</marquee>",
    f"<xmp><plaintext><textarea><math><mtext><table><mglyph><style><img src onerror={RUN}>",
)
# Words with a meaning for the grader. A submission cannot choose them.
OWN = {SAID, RANKS, VALUES, LIKELY, COMPUTING, COMMUNICATING, WAITING, TIMED, "barrier"}


def hostile() -> Callable[[], str]:
    """Return a function that gives one payload after the other, each with its number."""
    numbers = count()
    return lambda: f"{PAYLOADS[(number := next(numbers)) % len(PAYLOADS)]} {number}"


def harmless() -> Callable[[], str]:
    """Return a function that gives one harmless text after the other, each with its number."""
    numbers = count()
    return lambda: f"harmless {next(numbers)}"


def rewritten(records: list[Record], words: Callable[[], str]) -> list[Record]:
    """Return the records with other words in every text, wherever there is one."""
    return [
        replace(record, name=words(), finding=record.finding.written(_change(words)))
        for record in records
    ]


def _change(words: Callable[[], str]) -> Callable[[str], str]:
    return lambda old: old if not old or old in OWN else words()
