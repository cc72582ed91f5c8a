"""What a finished run says in others' registries is what its ledger and its files say."""

import json
from pathlib import Path

import pytest

from labelwall import pipeline
from labelwall.experiment.report.registry_entry import write_registry
from labelwall.experiment.report.report import read_run
from labelwall.wall.errors import LabelwallError
from tests.experiment.report.finished_run import change

FORM = {  # of tier 3, by the registry's template
    "basic": "name data_curators description intended_use data_product_type data_product_region "
    "data_product_sector publication_date",
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "privacy_loss": "privacy_unit privacy_unit_details number_of_privacy_units privacy_parameters "
    "privacy_parameters_details",
    "deployment_model": "model_name trust_assumptions actors release_type release_type_details "
    "data_source_type access_type",
    "implementation": "preprocessing_and_hyperparameter_tuning mechanisms composition "
    "post_processing justification utility additional_information",
    "administrative": "status registry_authors tier",
}


def test_an_entry_has_the_registrys_form_and_the_ledgers_numbers(rendered: Path, capsys) -> None:
    assert pipeline.main(["report", str(rendered), "--registry"]) == 0
    assert capsys.readouterr().out.split()[2:] == [
        str(rendered / "registry.json"),
        str(rendered / "SP_800_226.md"),
    ]
    run, entry = read_run(rendered), json.loads((rendered / "registry.json").read_text())
    deployment = entry["deployment"]
    assert {part: " ".join(fields) for part, fields in deployment.items()} == FORM
    loss = deployment["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": run.finding.epsilon, "delta": 1e-5}
    assert loss["privacy_unit"] == "Record-level"
    assert "adding or removing one record" in loss["privacy_unit_details"]
    assert "private_knn: 24 x screen" in deployment["implementation"]["mechanisms"]
    assert deployment["basic"]["publication_date"] == run.summary.date
    assert run.summary.ledger_head in deployment["implementation"]["additional_information"]
    sheet = (rendered / "SP_800_226.md").read_text()
    assert f"epsilon {run.finding.epsilon:.3f}, delta 1e-05" in sheet
    assert all(line.count(" | ") == 1 for line in sheet.splitlines() if line.startswith("| "))
    assert "    Whoever knows everything except whether one record was used" in sheet
    for text in (json.dumps(entry), sheet):
        assert "of-the-custodian" not in text
        assert str(rendered.parent) not in text


def test_nothing_is_registered_that_nothing_certifies(copied: Path) -> None:
    (copied / "registry.json").unlink(missing_ok=True)
    change(copied / "summary.json", epsilon=0.01)
    with pytest.raises(LabelwallError, match="nothing to register"):
        write_registry(copied)
    assert not (copied / "registry.json").exists()
