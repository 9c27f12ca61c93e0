"""What ``cottage check`` shows of a report: rows with something to be seen line by line, the others in one."""

import io

from rich.console import Console

from common.untrusted_text import untrusted
from coordinator.client.looks import check_table
from protocol.ids import Digest
from protocol.rest.dataset import Check, DatasetReport, Finding, Place


def test_rows_of_which_nothing_is_shown_take_one_line_and_no_row_is_named_twice() -> None:
    alike = Finding("near-duplicate", "notice", untrusted("alike"), 40, tuple(Place(row) for row in (2, 3, 1204)))
    faulty = Finding("bad-row", "error", untrusted("faulty"), 1, (Place(7, untrusted("row 7 has a quote")),))
    secret = Finding("mail", "warning", untrusted("mail"), 1, (Place(1_234, untrusted("a…@example")),))
    report = DatasetReport(900, 1_300, 1_299, 800, 20, 850, True, 259, (alike, faulty, secret), format="csv")
    out = io.StringIO()
    Console(file=out, width=200).print(check_table(Check(Digest("0" * 64), "done", 900, 900, report)))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert "  rows 2, 3, 1,204 and 37 more" in lines
    assert "  row 7 has a quote" in lines
    assert "  row 1,234  a…@example" in lines
