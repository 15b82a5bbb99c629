"""An operator who repairs what runs have found at two services, with the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from shieldtx.app.reconciliation import request_of
from shieldtx.app.reconciliation_start import opened
from shieldtx.cli.program import program
from shieldtx.reconcile import basis
from shieldtx.reconcile.config import read_configuration
from shieldtx.reconcile.findings import Findings, OutputFolder, to_json
from shieldtx.reconcile.repair.listed_rows import ListedRow
from shieldtx.store.reconciliation_runs import SqlReconciliationRuns
from tests.support.repair_scenarios import Pair, write_parquet
from tests.support.service import Service


class Operator:
    """An operator with a configuration of both services, and with runs to inspect."""

    def __init__(self, pair: Pair, folder: Path) -> None:
        self.pair = pair
        self.folder = folder
        self.config = folder / "nightly.toml"
        self.variables = {"ORDERS_URL": url(pair.orders), "STOCK_URL": url(pair.stock)}
        self.configure()
        self.runs = SqlReconciliationRuns(
            pair.orders.engine, pair.orders.app.tables, scope="nightly"
        )

    def configure(
        self, *, orders: str = "for-ever", stock: str = "for-ever", margin: str = "PT15M"
    ) -> None:
        self.config.write_text(
            f'margin = "{margin}"\n'
            "[services.orders]\n"
            'url = "ORDERS_URL"\n'
            f'retention = "{orders}"\n'
            "[services.stock]\n"
            'url = "STOCK_URL"\n'
            f'retention = "{stock}"\n'
        )

    def judged(self, **noted: Any) -> str:
        """Return the basis that a run of the present databases stores."""
        request = request_of(read_configuration(self.config, self.variables), Path("unused"))
        with opened(request) as databases:
            judged = basis.basis_of(request, databases.histories())
        return basis.to_json(replace(judged, **({"incomplete_inboxes": {}} | noted)))

    def ran(
        self,
        run_id: str,
        rows: list[ListedRow],
        *,
        outcome: str = "MISMATCHES",
        judged: str | None = None,
    ) -> Path:
        """Store a run that has found these rows, with its folder."""
        folder = OutputFolder(path=self.folder / run_id)
        known = self.judged() if judged is None else judged
        self.runs.begin(run_id, mode="full", who="night@host", folder=str(folder.path), basis=known)
        folder.path.mkdir(parents=True, exist_ok=True)
        write_parquet(folder.rows, rows, run_id=run_id)
        findings = Findings(
            run_id=run_id,
            started_at=datetime.now(UTC),
            seconds=1,
            margin=timedelta(0),
            bounds=(),
            counts=(),
            first_rows=(),
        )
        folder.findings.write_bytes(to_json(findings))
        self.runs.finish(run_id, outcome=outcome, totals={"MISSING_DOWNSTREAM": len(rows)})
        return folder.path

    def says(self, *arguments: str, answer: str = "") -> Result:
        command = ["reconcile", *arguments, "--config", str(self.config)]
        return CliRunner().invoke(program, command, input=answer, env=self.variables)

    def answers(self, *arguments: str) -> Any:
        result = self.says(*arguments, "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)


def url(service: Service) -> str:
    return service.engine.url.render_as_string(hide_password=False)
