"""How the page shows what strangers wrote: Markdown that can only be read, differences, problems, figures. Pure."""

import datetime as dt
import re

from deepskills.store.document import difference
from deepskills.store.page import shown
from deepskills.store.page.markdown import MAX_RENDERED, Place, render
from deepskills.store.service import UsageCount

PLACE = Place("/skills/1/files/", "/skills/1", "", frozenset({"references/a b.md", "x.svg", "up.md"}))
DEEP = Place("/skills/1/files/", "/skills/1", "references", PLACE.paths)


def links(text: str, place: Place = PLACE) -> list[str]:
    """Return where the links of a text lead."""
    return re.findall(r'href="([^"]*)"', render(text, place) or "")


def test_links_lead_where_they_say() -> None:
    """A link leads to a file of the skill, a heading of the text or, marked, outside; any other is plain text."""
    table = {
        "[a](references/a%20b.md#x)": ["/skills/1/files/references/a%20b.md"],
        "[a](./x.svg?y)": ["/skills/1/files/x.svg"],
        "![a](x.svg)": ["/skills/1/files/x.svg"],
        "`references/a b.md` and `other.md`": ["/skills/1/files/references/a%20b.md"],
        "[a](SKILL.md)": ["/skills/1"],
        "[a](#The%20End)": ["#part-the-end"],
        "[a](https://x.example/?a=1&b=2)": ["https://x.example/?a=1&amp;b=2"],
        "<mailto:a@x.example>": ["mailto:a@x.example"],
        "![a](http://x.example/y.png)": ["http://x.example/y.png"],
        "[![a](x.svg)](http://x.example)": ["http://x.example"],
    }
    nowhere = [
        "javascript:alert(1)", "JaVaScRiPt:alert(1)", "java&#10;script:alert(1)", "&#106;avascript:alert(1)",
        "data:text/html,x", "vbscript:x", "file:///etc/passwd", "//evil.example", "/deleted", "\\\\evil.example",
        "/\\evil.example", "../up.md", "references/../../up.md", "none.md", "x:y", "?q=1", "#", "ftp://x.example",
        "blob:x", "%2f%2fevil.example", "http:/logout", "https:logout", "http:\\\\evil.example", "https:///logout",
    ]  # fmt: skip
    table |= {f"[a]({address}) ![b]({address})": [] for address in nowhere}
    table |= {"[a][r]\n\n[r]: javascript:alert(1)": [], "<javascript:alert(1)>": []}
    assert {text: links(text) for text in table} == table
    assert links("[up](../up.md) [same](a%20b.md)", DEEP) == [
        "/skills/1/files/up.md",
        "/skills/1/files/references/a%20b.md",
    ]
    outside = render("[a](https://x.example)", PLACE)
    assert outside is not None
    assert 'rel="noopener noreferrer nofollow"' in outside


def test_markup_is_text() -> None:
    """HTML is shown as characters; nothing of a text becomes a class, a style, an id of the page or an image."""
    text = '# main\n\n<b onclick="x">\n\n```"><b\n<i>\n```\n\n'
    text += '| a |\n|-:|\n| <u> |\n\n![x](x.svg "t") \u202eabc\n\n# main\n'
    html = render(text, PLACE) or ""
    assert set(re.findall(r"<(\w+)", html)) == {
        "h2",
        "p",
        "pre",
        "code",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "a",
    }
    assert re.findall(r'id="([^"]*)"', html) == ["part-main"]
    assert set(re.findall(r'class="([^"]*)"', html)) == {"right"}
    assert "style" not in html
    assert "\u202e" not in html
    assert render("x" * (MAX_RENDERED + 1), PLACE) is None
    assert render("> " * 15_000 + "\n" + "[" * 20_000, PLACE) is not None


def test_differences() -> None:
    """Every line of a difference is what it is, also where it looks like a heading; numbers are those of the files."""
    old = {"SKILL.md": b"one\n-- two\nthree\n", "a.md": b"gone\n", "b.bin": b"\xff", "c.md": b"\x1b[31mred"}
    new = {"SKILL.md": b"one\n++ two\nthree\n+++ four\n", "n.md": b"new", "b.bin": b"\xfe", "c.md": b"red\n"}
    diff = shown.diff_of(difference(old, new))
    lines = [(line.kind, line.text, line.old, line.new) for line in diff.lines if line.kind != "hunk"]
    assert lines == [
        ("file", "SKILL.md", None, None),
        ("same", "one", 1, 1),
        ("removed", "-- two", 2, None),
        ("added", "++ two", None, 2),
        ("same", "three", 3, 3),
        ("added", "+++ four", None, 4),
        ("file", "a.md (removed)", None, None),
        ("removed", "gone", 1, None),
        ("note", "Binary files a/b.bin and b/b.bin differ", None, None),
        ("file", "c.md", None, None),
        ("removed", "\x1b[31mred", 1, None),
        ("note", "No newline at end of file", None, None),
        ("added", "red", None, 1),
        ("file", "n.md (new)", None, None),
        ("added", "new", None, 1),
        ("note", "No newline at end of file", None, None),
    ]
    assert (diff.added, diff.removed, diff.is_cut) == (4, 3, False)
    many = shown.diff_of(difference({}, {"a": b"x\n" * 10_000}))
    assert (len(many.lines), many.is_cut) == (shown.MAX_DIFF_LINES, True)


def test_problems_while_typing() -> None:
    """What keeps a text from being saved is told apart from advice, and each is said once."""
    good = "---\nname: tea\ndescription: Brews tea.\n---\nBoil.\n"
    checked = shown.check(good)
    assert (checked.errors, checked.advice, checked.description_length) == ([], [], 10)
    assert checked.tokens > 0
    table = {
        "nothing": "There is no frontmatter",
        good.replace("name: tea", "name: Big Tea"): "breaks the naming rules",
        good.replace("description: Brews tea.\n", ""): "There is no description",
        good.replace("Brews tea.", "x" * 2_000): "",
        "\x00": "",
    }
    for text, error in table.items():
        found = shown.check(text)
        assert error in " ".join(found.errors), text
        assert len([*found.errors, *found.advice]) >= 1
        assert len({*found.errors, *found.advice}) == len([*found.errors, *found.advice])
    unwritten = shown.check("---\nname: tea\ndescription: 'TODO: describe it'\n---\n")
    assert unwritten.errors == []
    assert "placeholder: the description" in "".join(unwritten.advice)
    assert len(shown.check(good.replace("name: tea", "name: Big Tea")).advice) == 0
    assert str(shown.format_message("Use `a<b>` or <i>.")) == "Use <code>a&lt;b&gt;</code> or &lt;i&gt;."


def test_what_cannot_be_seen_is_marked() -> None:
    """Every character that a model reads and nobody sees is there by number, markup around it stays text."""
    table = {
        "a\u202eb": "a[U+202E]b",
        "a\u200b\u200b\u200bb": "a[U+200B×3]b",
        "<b>\ufeff</b>": "&lt;b&gt;[U+FEFF]&lt;/b&gt;",
        "\U000e0001" + "".join(chr(0xE0000 + ord(sign)) for sign in "<hi>"): (
            "[U+E0001 U+E003C U+E0068 U+E0069 U+E003E “&lt;hi&gt;”]"
        ),
        "\x1b[31mred\r\n\tx\ry": "[U+001B][31mred\r\n\tx[U+000D]y",
        "\u200b\r\n": "[U+200B]\r\n",
        "\xa0\xad\u2028\u2066\u3164\ufe0f\U000e0100\ue000": (
            "[U+00A0 U+00AD U+2028 U+2066 U+3164 U+FE0F U+E0100 U+E000]"
        ),
        "naïve 日本語 עברית 🙂": "naïve 日本語 עברית 🙂",
    }
    as_text = {
        text: str(shown.mark_invisible(text)).replace('<span class="mark">', "[").replace("</span>", "]")
        for text in table
    }
    assert as_text == table


def test_line_ends_stay() -> None:
    """A browser sends every line end as two characters; a text keeps those that it had."""
    assert shown.as_before("a\r\nb\r\n", None) == "a\nb\n"
    assert shown.as_before("a\r\nb!\r\n", "a\nb\n") == "a\nb!\n"
    assert shown.as_before("a\r\nb!\r\n", "a\r\nb\r\n") == "a\r\nb!\r\n"
    assert shown.as_before("a\r\nb\r\n", "a\r\nb\n") == "a\r\nb\n"


def test_use_as_bars_and_a_line() -> None:
    """The last thirty days are shown to scale, whatever was counted before, and said in words."""
    today = dt.date(2026, 3, 1)
    use = shown.use_of(
        {today: 4, today - dt.timedelta(days=29): 2, today - dt.timedelta(days=30): 99}, today, {"pin": 1, "model": 5}
    )
    assert (use.total, len(use.days)) == (6, 30)
    assert [use.days[0].length, use.days[1].length, use.days[-1].length] == [50, 0, 100]
    # Shares of all loads, as the track behind each bar says.
    assert [(bar.label, round(bar.length)) for bar in use.triggers] == [("model", 83), ("pin", 17)]
    counts = [
        UsageCount(today, "skill.loaded", "model", 52),
        UsageCount(today, "skill.refused", "budget", 3),
        UsageCount(today, "skill.refused", "unknown", 5),
    ]
    assert shown.use_from(counts, today).checked == ""
    counts += [UsageCount(today, "skill.checked", "model", 90), UsageCount(today, "skill.unchecked", "model", 11)]
    use_of_checked = shown.use_from(counts, today)
    assert use_of_checked.checked == "followed in 41 of 52 uses"
    assert [(bar.label, bar.count) for bar in use_of_checked.refusals] == [("unknown", 5), ("budget", 3)]
    assert use.label == "Loaded 6 times in 30 days, most on 1 Mar 2026 (4)"
    assert shown.use_of({}, today).label == "Not loaded in 30 days"
    assert [shown.size(1), shown.size(2_048), shown.size(5 << 20)] == ["1 byte", "2.0 KB", "5.0 MB"]
