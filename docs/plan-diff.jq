# The difference of two plans (`orch plan SPEC OTHER --json`) as a table in Markdown.
def rounded: if . == floor then . else pow(10; 3 - (fabs | log10 | floor)) as $by | . * $by | round / $by end;
def cell: if . == null then "-" elif type == "number" then rounded else . end | tostring;
def row: "| \(.key) | \(.first | cell) | \(.second | cell) |";
"| | \(.plans[0].name) | \(.plans[1].name) |", "|---|---|---|",
(.requested[] | row), (.decided[] | row),
(.figures[] | select(.key | test("^(fits|step_s.expected|mfu.expected|days.expected|dollars.expected)$")) | row)
