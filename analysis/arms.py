"""Canary against control at the same time: what --control and --canary select, and the hosts that this means.

Samples tell hosts apart and no finer place: an arm is hosts, or a service on its hosts, and each host is one
observation. Two arms may share a host, under different services, but no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from kdiff.analysis.clusters import MIN_HOSTS
from kdiff.analysis.compare import Options, compare
from kdiff.analysis.evidence import Evidence, holdings
from kdiff.analysis.report import Arm, Report
from kdiff.analysis.scope import Scope
from kdiff.analysis.selectors import Selector
from kdiff.analysis.side_words import in_arms, reworded
from kdiff.analysis.window import Window
from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import quoted
from kdiff.queries.store import Store

_SHOWN: Final = 6


@dataclass(frozen=True, slots=True)
class Arms:
    """Both arms, of one window of one store, and what may be wrong with them, one sentence each."""

    control: Evidence
    canary: Evidence
    warnings: tuple[str, ...] = ()


def resolve(
    store: Store, window: Window, selectors: tuple[Selector, Selector], service: str = "", exact: bool = False
) -> Arms:
    """The arms that the selectors of control and canary mean in a window.

    `service`: that of an arm whose selector names none. Raises KdiffError: a selector that matches nothing, arms that
    share rows; StoreError.
    """
    found: list[Evidence] = []
    warnings: list[str] = []
    for selector in selectors:
        of_arm = Evidence(store, window, selector.service or service, exact)
        hosts, idle = _hosts(selector, of_arm)
        found.append(of_arm.scoped(Scope(hosts=hosts, by_host=True)))
        if idle:
            warnings.append(
                f"{selector.option}: {_listed(idle)} recorded, but launched nothing in the window "
                f"{of_arm.window.brief()}: left out"
            )
    control, canary = found
    shared = sorted({*control.scope.hosts} & {*canary.scope.hosts})
    if shared:
        if control.service == canary.service or not (control.service and canary.service):
            raise KdiffError(
                f"--control and --canary share {_listed(shared)}: name each host in one of them, or tell the arms "
                "apart by service="
            )
        warnings.append(
            f"{_listed(shared)} {'runs' if len(shared) == 1 else 'run'} both arms: where these share a GPU, what one "
            "does to the other is in the ratio"
        )
    return Arms(control, canary, tuple(warnings))


def compare_arms(arms: Arms, options: Options) -> Report:
    """The comparison of `compare`, control in place of before, told in words of arms. Raises KdiffError."""
    try:
        # What a calibration knows of windows, one after the other, is nothing of hosts.
        report = compare(arms.control, arms.canary, replace(options, history=False))
    except KdiffError as error:
        error.args = tuple(in_arms(str(text)) for text in error.args)
        raise
    both = Arm(arms.control.scope.hosts, arms.control.service), Arm(arms.canary.scope.hosts, arms.canary.service)
    few = [
        f"{called} has {len(arm.hosts)} {'host' if len(arm.hosts) == 1 else 'hosts'}, and {MIN_HOSTS} are needed for a "
        "verdict"
        for called, arm in zip(("the control", "the canary"), both, strict=True)
        if len(arm.hosts) < MIN_HOSTS
    ]
    return reworded(report, both, (*arms.warnings, *few))


def _hosts(selector: Selector, evidence: Evidence) -> tuple[tuple[str, ...], list[str]]:
    """The hosts of an arm that ran anything, in order, and those that were meant and only recorded."""
    ran = {row["host"] for row in evidence.processes} | {host for host, _ in evidence.timed_by}
    window = evidence.window.brief()
    if not ran:
        held = holdings(evidence.store, evidence.service)
        of_service = f" of the service {quoted(evidence.service)}" if evidence.service else ""
        raise KdiffError(f"{selector.option}: nothing{of_service} was recorded in the window {window}: {held}")
    if not selector.hosts:
        return tuple(sorted(ran)), []
    recorded = {*evidence.recording().hosts} - ran
    hosts: set[str] = set()
    idle: set[str] = set()
    for pattern in selector.hosts:
        matching, quiet = ({host for host in names if _matches(host, pattern)} for names in (ran, recorded))
        if not (matching or quiet):
            of_service = f" of the service {quoted(evidence.service)}" if evidence.service else ""
            raise KdiffError(
                f"{selector.option}: no host matches {quoted(pattern)} in the window {window}: hosts{of_service} are "
                f"{_listed(sorted(ran))}"
            )
        hosts |= matching
        idle |= quiet
    if not hosts:
        raise KdiffError(
            f"{selector.option}: {_listed(sorted(idle))} recorded, but launched nothing in the window {window}: choose "
            f"a window with traffic, or other hosts ({_listed(sorted(ran))})"
        )
    return tuple(sorted(hosts)), sorted(idle)


def _matches(host: str, pattern: str) -> bool:
    """Whether a host is meant: * is any text and ? any character, and nothing else is special in a name."""
    return fnmatchcase(host, pattern.replace("[", "[[]"))


def _listed(hosts: Sequence[str]) -> str:
    """Names for a sentence, the first few."""
    shown = ", ".join(map(quoted, hosts[:_SHOWN]))
    more = len(hosts) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
