"""The loop: ask, train, send features back, ask again.

Each round is complete on disk before the next one starts: results so far in, next result out.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from ...student.asking.ask import Asked, ask, public_alone
from ...student.asking.asking_features import AskingRound, choose_features, features_of
from ...student.asking.public_rows import PublicRows
from ...student.board import save_board
from ...student.learning import Learned, learn
from ...student.public_map import nearest_right, save_map
from ...student.results import RoundResult, best_round, estimates, kept_round, write
from ...student.round_files import TRAINING_LABELS
from ...student.scores import digest_of_tests, label_score, student_score
from ...student.shown import shown
from ...student.student_model import Privacy, StudentInfo, outputs, pack
from ...teacher.accounting.accountant import certificates, certified_epsilon, smallest_certified
from ...teacher.accounting.conversion import round_up
from ...teacher.custody.recorded import odometer_reading
from ...teacher.ledger.state import LedgerState
from ...wall.answering import Answering
from ...wall.console import Console
from ...wall.datasets.tables import encoding
from ...wall.errors import LabelwallError
from ...wall.files import digest, reading, write_file
from ...wall.labels import has_label
from ...wall.messages import ExtractorSpec, Outcome
from ...wall.questions import Round, Scoring
from .baselines import baselines
from .custodians import Custodians
from .lines import by_class, collapsed_line, few_line, lost_line, round_line
from .run_folder import RunFolder
from .scoring import STUDENT, best_scored
from .stopping import Watch
from .summary import PeriodResult, PrivateScore, Summary


def run_rounds(
    teacher: Answering,
    public: PublicRows,
    rounds: Sequence[Round],
    scoring: Scoring | None,
    folder: RunFolder,
    console: Console,
) -> Summary:
    """Ask the ``rounds`` that are not finished, in order; returns what the run came to.

    ``scoring``: by what the result is scored; None without a score.
    """
    results = folder.results(len(rounds))
    if public.learned is not None:
        first = AskingRound(planned=rounds[0], results=[], folder=folder)
        features = (
            features_of(public, results[0], folder) if results else choose_features(public, first)
        )
        if alone := public_alone(public, features.spec):
            console.say(alone)
    for planned in rounds[len(results) :]:
        result = _next_result(teacher, public, planned, results, folder, console)
        results = [*results, result]
        save_map(public, results, folder)
        if public.settings.student.logger == "tensorboard":
            _save_board(public, results, folder)
        folder.save_result(planned.number, result)
    results = [_on_these_tests(n, r, public, folder, console) for n, r in enumerate(results, 1)]
    for planned in rounds:
        checkpoints = folder.round(planned.number) / "checkpoints"
        shutil.rmtree(checkpoints, ignore_errors=True)
        if planned.period == rounds[-1].period:
            _say(results[: planned.number], public, console)
    return _summarise(teacher, public, scoring, results, folder, console)


def _next_result(
    teacher: Answering,
    public: PublicRows,
    planned: Round,
    results: Sequence[RoundResult],
    folder: RunFolder,
    console: Console,
) -> RoundResult:
    """The next result: the ``planned`` round is asked, and its student learns what came back.

    ``results``: of all earlier rounds.
    """
    watch = Watch(
        teacher=teacher,
        asked=planned,
        folder=folder,
        space=public.task.labels,
        guess=public.settings.records(len(public.data.inputs)),
        shares=public.class_shares,
    )
    if warning := watch.warning():
        console.say(f"round {planned.number}: {warning}")
    with console.timed(f"round {planned.number}: asking"):
        current = AskingRound(planned=watch.remaining, results=results, folder=folder)
        asked = ask(watch, public, current, console)
    answers = asked.answers
    folder.save_answers(planned.number, asked.rows, answers.labels, answers.outcomes)
    teacher.export(folder.ledger)
    ledger = folder.ledger_state()
    try:
        with console.timed(f"round {planned.number}: training"):
            learned = learn(public, current, asked, console)
    except LabelwallError as error:
        if lost := lost_line(ledger.lost()):
            raise LabelwallError(f"{error} ({lost})") from error
        raise
    return _result(public, planned, asked, learned, ledger)


def _result(
    public: PublicRows, planned: Round, asked: Asked, learned: Learned, ledger: LedgerState
) -> RoundResult:
    labels, outcomes = asked.answers.labels, asked.answers.outcomes
    score = label_score(public, asked.rows, labels)
    return RoundResult(
        **vars(learned.score),
        period=planned.period,
        asked=len(asked.rows),
        answered=int(has_label(labels).sum()),
        abstained=int((outcomes == Outcome.ABSTAINED).sum()),
        cap_reached=int((outcomes == Outcome.CAP_REACHED).sum()),
        label_accuracy=score["accuracy"],
        label_errors=score.get("errors"),
        nearest_right=nearest_right(public, asked.features.spec),
        estimate=learned.estimate,
        extractor=asked.features.spec.backbone,
        features=asked.features.file,
        features_of=asked.features.of,
        taught=learned.taught,
        dropped=learned.dropped,
        seconds=learned.seconds,
        epsilon_reading=odometer_reading(ledger),
        ledger_head=asked.answers.receipt.ledger_head,
    )


def _save_board(public: PublicRows, results: Sequence[RoundResult], folder: RunFolder) -> None:
    """Store what TensorBoard shows of the last round; its images are the report's if it is kept."""
    seen = None
    if public.data.inputs.ndim == 4:
        spec = folder.load_extractor(len(results))
        write(seen := shown(public, spec, results, folder), folder.shown)
    save_board(public, results, seen, folder)


def _on_these_tests(
    number: int, result: RoundResult, public: PublicRows, folder: RunFolder, console: Console
) -> RoundResult:
    """A round's result on the test rows as they are now, whose labels cost nothing."""
    if result.test_sha256 == digest_of_tests(public):
        return result
    console.say(f"round {number}: other test rows; its student is scored on them")
    predicted = outputs(folder.load_extractor(number), public.data.test_inputs)
    result = replace(result, **vars(student_score(public, predicted)))
    folder.save_result(number, result)
    return result


def _say(results: Sequence[RoundResult], public: PublicRows, console: Console) -> None:
    """Say what the last of these rounds came to, and whether an earlier one is kept for it."""
    number = len(results)
    console.say(round_line(number, results[-1], public.task.labels))
    if collapsed := collapsed_line(results[-1], public.task.labels):
        console.say(f"round {number}: {collapsed}")
    if few := few_line(results[-1], public.task.labels):
        console.warn(f"round {number}: {few}")
    known = estimates(results, results[-1].period)
    if (kept := best_round(known)) < number:
        texts = [e.text() for n in (number, kept) if (e := known[n - 1]) and e.known]
        told = f" (labels {' against '.join(texts)})" if len(texts) > 1 else ""
        console.say(
            f"round {number} is worse than round {kept} by what was released{told}, so round "
            f"{kept}'s student and features are kept. Nothing is to be done."
        )


def _summarise(
    teacher: Answering,
    public: PublicRows,
    scoring: Scoring | None,
    results: Sequence[RoundResult],
    folder: RunFolder,
    console: Console,
) -> Summary:
    """Write summary.json and the student."""
    best = best_scored(teacher, public, scoring, results, kept_round(results), folder)
    if best.score is not None:
        console.say(f"round {best.number}'s {best.name} {best.score.text()}")
    rounds = list(results)
    if best.name != STUDENT:
        score = student_score(public, outputs(best.spec, public.data.test_inputs))
        told = replace(rounds[best.number - 1], **vars(score), dropped=0, seconds=0.0)
        rounds[best.number - 1] = told
        folder.save_result(best.number, told)
    teacher.export(folder.ledger)
    ledger, plan, kept = folder.ledger_state(), folder.plan, rounds[best.number - 1]
    earlier = folder.finished()
    same_tests = earlier is not None and earlier.kept.test_sha256 == kept.test_sha256
    balanced, worst = by_class(kept, public.task.labels)
    summary = Summary(
        epsilon=None if ledger.unsafe else round_up(certified_epsilon(plan)),
        delta=plan.delta,
        unsafe=ledger.unsafe,
        adversary=ledger.adversary,
        unit=plan.unit,
        certificates={name: round_up(c.epsilon) for name, c in certificates(plan).items()},
        best_round=best.number,
        test_accuracy=kept.student_accuracy,
        test_errors=kept.student_errors,
        balanced_accuracy=balanced,
        worst_class=worst,
        baselines=earlier.baselines
        if earlier and same_tests
        else baselines(public, features_of(public, results[0], folder).spec),
        rounds=tuple(rounds),
        dataset=ledger.dataset,
        ledger_head=ledger.head,
        lost=ledger.lost(),
        private_score=best.score,
        custodians=teacher.described(folder.ledger) if isinstance(teacher, Custodians) else (),
        seed=public.settings.seed,
        balanced=public.settings.balanced,
        public_rows=len(public.data.inputs),
        periods=_periods(public, kept, best.score, folder),
        test_rows=len(public.data.test_inputs),
        held_out=public.data.held_out,
        date=earlier.date if earlier else datetime.now(UTC).date().isoformat(),
    )
    if len(folder.periods()) < len(summary.periods):
        folder.report.unlink(missing_ok=True)  # the report of this period, written last, ends it
    write_file(folder.student, _with_metadata(best.spec, public, summary, folder))
    if (stored := folder.shown_rows()) is None or stored.model != best.spec.sha256():
        write(shown(public, best.spec, rounds[: best.number], folder), folder.shown)
    write(summary, folder.summary)
    if lost := lost_line(summary.lost):
        console.say(lost)
    return summary


def _periods(
    public: PublicRows, kept: RoundResult, score: PrivateScore | None, folder: RunFolder
) -> tuple[PeriodResult, ...]:
    """What the periods until now came to, the last one by its ``kept`` round."""
    plan = folder.plan
    last = PeriodResult(
        period=kept.period,
        epsilon=round_up(certified_epsilon(plan.up_to(kept.period))),
        left=plan.periods - kept.period,
        test_accuracy=kept.student_accuracy,
        estimate=kept.estimate,
        private_score=score,
        public_sha256=digest(public.data.inputs),
    )
    return (*(p for p in folder.periods() if p.period < kept.period), last)


def _with_metadata(
    spec: ExtractorSpec, public: PublicRows, summary: Summary, folder: RunFolder
) -> bytes:
    """The kept model with its metadata: a safetensors file.

    All of it is public, so nothing is charged.
    """
    plan, labels, data = folder.plan, public.task.labels, public.settings.data
    privacy = Privacy(
        certificate=smallest_certified(plan),
        epsilon=summary.epsilon,
        delta=summary.delta,
        adversary=summary.adversary,
        ledger_head=summary.ledger_head,
        dataset=summary.dataset,
        unit=summary.unit,
    )
    shares = None
    if labels.kind == "class":  # a class without a label is as if it had one
        path = folder.round(summary.best_round) / TRAINING_LABELS
        with reading(path):
            taught = np.load(path, allow_pickle=False)
        counts = 1.0 + np.bincount(taught[taught >= 0], minlength=labels.outputs)
        shares = tuple(map(float, counts / counts.sum()))
    info = StudentInfo(
        backbone=spec.backbone,
        input_shape=spec.input_shape,
        mean=spec.mean,
        std=spec.std,
        labels=labels,
        privacy=privacy,
        table=encoding(data) if data.source == "table" else None,
        shares=shares,
        white=data.white,
    )
    return pack(info, spec.weights)
