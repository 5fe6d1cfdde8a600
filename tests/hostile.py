"""Texts that others may put into a table, each of which tries something."""

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\"' onmouseover='document.title=1' x=\"",
    '=HYPERLINK("http://evil.example","x")',
    "\u202egnp.exe\u202c \u2066x\u2069",
    "a\x00b\x1b[2J\nc",
    "]]><!-- --><svg onload=document.title=1>",
    "{{ 7 * 7 }} {% raw %}",
    "javascript:alert(1)",
    "&lt;b&gt; &amp;",
    "line\u2028separator",
)
