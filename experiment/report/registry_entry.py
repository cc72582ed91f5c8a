"""A finished run as others register it, from the run folder alone.

registry.json has the form of the registry of deployments (arXiv 2509.13509; registry.opendp.org).
SP_800_226.md answers what NIST SP 800-226 asks, part by part. What no file of a run says, such as
who publishes the model and for what, is left empty for its publisher.
"""

import json
from pathlib import Path
from typing import Any

from ...teacher.accounting.accountant import certificates, explain, smallest_certified
from ...teacher.accounting.plan import Plan
from ...teacher.accounting.risk import table
from ...wall.errors import LabelwallError
from ...wall.files import write_file
from ...wall.guarantee import protected
from .report import FinishedRun, data_name, read_run, render

FILES = "registry.json", "SP_800_226.md"


def write_registry(run_dir: Path) -> list[Path]:
    """Write FILES into a finished run's folder. Raises as ``read_run``, and LabelwallError where
    the ledger certifies nothing.
    """
    run = read_run(run_dir)
    plan = run.finding.plan
    if run.certified is None or plan is None:
        raise LabelwallError(f"{run_dir} certifies nothing, so there is nothing to register.")
    words = _words(run, plan)
    entry = json.dumps(_entry(run, plan, words), indent=2, ensure_ascii=False) + "\n"
    sheet = render(FILES[1], {"run": run, "plan": plan, **words})
    for name, text in zip(FILES, (entry, sheet), strict=True):
        write_file(run_dir / name, text)
    return [run_dir / name for name in FILES]


def _words(run: FinishedRun, plan: Plan) -> dict[str, str]:
    """What both files say in the same words."""
    summary, name, data = run.summary, smallest_certified(plan), data_name(run.config.data)
    scores: dict[str, float | None] = {"accuracy": summary.test_accuracy}
    scores |= summary.test_errors or {}
    utility = [f"{key} {value:.4g}" for key, value in scores.items() if value is not None]
    utility += [summary.baselines.text()] if summary.baselines else []
    releases = [(slot.mechanism["kind"], r) for slot in plan.slots for r in slot.releases]
    tuned = "by the settings, which must not follow from private rows"
    if run.choice:
        tuned = f"rehearsals on {run.choice.source}; no private record was read for them"
    public = run.config.data.drawn_from or f"{summary.public_rows} public rows"
    return {
        "neighbours": f"data sets that differ by adding or removing {protected(plan.unit)}",
        "accountant": f"labelwall {run.info.version}, {name}: {certificates(plan)[name].note}",
        "mechanisms": "; ".join(f"{kind}: {r.cap} x {r.name}, {r.curve}" for kind, r in releases),
        "utility": f"of {summary.test_rows} test rows: {', '.join(utility) or 'unknown'}",
        "tuning": tuned,
        "domain": f"rows of the form of {data!r} with labels of the kind {run.info.labels.kind!r}",
        "public": f"{public}, {summary.test_rows} test rows, all settings",
        "risks": "\n".join(table(run.risks, plan.unit)),
        "arithmetic": "\n".join(explain(plan)),
    }


def _entry(run: FinishedRun, plan: Plan, words: dict[str, str]) -> dict[str, Any]:
    """The registry's entry of tier 3: its fields, in its order."""
    several = plan.periods > 1
    deployment = {
        "basic": {
            "name": f"labelwall student of {data_name(run.config.data)}",
            "data_curators": [],
            "description": f"{run.info.backbone}: {words['domain']}",
            "intended_use": "",
            "data_product_type": "Machine learning model",
            "data_product_region": "",
            "data_product_sector": "",
            "publication_date": run.summary.date,
        },
        "dp_variant": {
            "variant_name": "Approximate DP",
            "data_domain": words["domain"],
            "unprotected_quantities": f"{words['public']}; the teacher's time and memory",
        },
        "privacy_loss": {
            "privacy_unit": "User-level" if plan.unit == "person" else "Record-level",
            "privacy_unit_details": f"Neighbours: {words['neighbours']}",
            "number_of_privacy_units": 1,
            "privacy_parameters": {"epsilon": run.certified, "delta": plan.delta},
            "privacy_parameters_details": f"{words['accountant']}\n{words['risks']}",
        },
        "deployment_model": {
            "model_name": "Central",
            "trust_assumptions": "The custodian alone is trusted with the records.",
            "actors": f"The guarantee holds against {run.finding.adversary}.",
            "release_type": "Many releases" if several else "One release",
            "release_type_details": f"periods for which the budget pays: {plan.periods}",
            "data_source_type": "Dynamic" if several else "Static",
            "access_type": "Interactive" if run.config.teacher else "Non-interactive",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": words["tuning"],
            "mechanisms": words["mechanisms"],
            "composition": words["arithmetic"],
            "post_processing": "the student, from what was released and from public rows",
            "justification": "",
            "utility": words["utility"],
            "additional_information": f"ledger's head: {run.summary.ledger_head}",
        },
        "administrative": {"status": "Draft", "registry_authors": [], "tier": 3},
    }
    return {"url_slug": f"labelwall-{run.summary.dataset}", "deployment": deployment}
