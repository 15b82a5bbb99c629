"""Tests of the repair of a planted world, followed by real relays, consumers and further runs."""

from __future__ import annotations

from contextlib import ExitStack

from shieldtx import Settings, ShieldTx
from shieldtx.ports.repair import RepairAction
from shieldtx.reconcile.findings import OutputFolder
from shieldtx.reconcile.repair.decisions import REPAIRED, Policy, step_of
from shieldtx.reconcile.repair.listed_rows import listed_rows
from shieldtx.reconcile.repair.repair import Repair
from shieldtx.reconcile.repair.steps import Refusal
from shieldtx.store.repair import SqlRepairStore
from shieldtx.testing.memory_broker import MemoryBroker
from tests.spark.planting import SHARDS
from tests.spark.running import reconciled
from tests.spark.scenarios import TYPES, plant
from tests.spark.world import COMPENSATES, GROUPS, UNDOES, World, found_rows, request
from tests.support.service import drain


def opened(service, broker):
    """Open the application of a service, whose handlers and compensations all succeed."""
    settings = Settings(
        source=service.name,
        database_url=service.url,
        database_schema=service.schema,
        shards=SHARDS,
        relay_wakeup=False,
    )
    app = ShieldTx(settings, engine=service.engine, broker=broker)
    for type_ in TYPES:
        app.declare(type_, topic=type_.partition(".")[0])
    for group in GROUPS:
        if group.service == service.name:
            for type_ in group.types:
                app.consumer(group.name).handles(type_)(lambda session, event: None)
            for type_ in UNDOES.get((group.service, group.name), ()):
                app.consumer(group.name).compensates(type_)(lambda session, event: None)
    for type_ in TYPES:
        if type_.startswith(f"{service.name}."):
            app.consumer(COMPENSATES[service.name]).compensates(type_)(lambda session, event: None)
    return app


def go_on(services):
    """Run the relays and consumers of all services until no work is left."""
    broker = MemoryBroker()
    apps = [opened(service, broker) for service in services]
    for app in apps:
        broker.topics().create(app.topics(), partitions=2, replication=1)
    with ExitStack() as open_:
        workers = []
        for app in apps:
            for group in app.groups:
                workers.append(app.build_consumer(group))
                open_.callback(workers[-1].close)
            workers.append(app.build_relay())
        drain(*workers)


def repair(services, folder, run_id):
    policy = Policy(services=frozenset(service.name for service in services))
    stores = {s.name: SqlRepairStore(s.engine, s.tables, source=s.name) for s in services}
    mended, rows = set(), set()
    for row in listed_rows(folder.rows, REPAIRED):
        step = step_of(row, policy)
        if not isinstance(step, Refusal):
            mended.add((row.kind.value, row.upstream, row.downstream, row.group, str(row.event_id)))
            # A repair releases an outbox row once, for all the groups that wait for it.
            is_of_group = step.action is RepairAction.HAND_OVER
            group = row.group if is_of_group else step.row.group
            rows.add((step.action, step.service, step.row.event_id, group))
    work = Repair(stores=stores, policy=policy, run_id=run_id, who="a test")
    report = work.run(listed_rows(folder.rows, REPAIRED))
    assert sum(repaired.done for repaired in report.repaired.values()) == len(rows)
    return mended


def mismatches(folder):
    return {key: verdict for key, verdict in found_rows(folder).items() if verdict.is_mismatch}


def test_run_after_a_repair_is_clean_and_the_next_is_unchanged(services, tmp_path, spark, jdbc_jar):
    world = World(services, declared=True)
    with world.held():
        plant(world, seed=77, events=20)
        world.flush()
    folders = [OutputFolder(path=tmp_path / str(number)) for number in range(3)]

    def run(folder):
        folder.path.mkdir()
        reconciled(spark, request(world, folder.path, jdbc_jar))
        return mismatches(folder)

    before = run(folders[0])
    mended = repair(services, folders[0], "first")
    assert mended
    go_on(services)
    after = run(folders[1])
    assert after.keys() & mended == set()
    assert after.items() <= before.items()
    assert repair(services, folders[1], "second") == set()
    go_on(services)
    assert run(folders[2]) == after
