"""Settings by name become a Config, and back: pydantic makes dataclasses of them, and what it
refuses is one line.
"""

import difflib
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast, get_args, get_type_hints

import yaml
from docstring_parser import parse as docstring
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from ...teacher.custody.private_settings import PrivateSide
from ...teacher.mechanisms.base import Mechanism
from ...teacher.mechanisms.registry import ANSWERING, DEFAULT_KIND, MECHANISMS
from ...wall.errors import InvalidInput, LabelwallError, listed
from ...wall.files import FORMAT, other_format
from .config import Config

RULES = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
T = TypeVar("T")
UNKNOWN = "unexpected_keyword_argument"  # a type of pydantic's errors
MOST_VALUES, DEEPEST = 30_000, 30  # in YAML: values with those that aliases repeat, lists in lists


class BadSetting(LabelwallError):
    """A configuration file or an option that is not valid."""


class _Texts(yaml.SafeLoader):
    """YAML whose words stay texts, but null: the type of a setting says what its word means.

    Raises BadSetting for a name that is given twice, and for more than anybody needs.
    """

    yaml_constructors: ClassVar = {
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.endswith((":null", ":str", ":seq", ":map"))
    }

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.yaml_implicit_resolvers = {
            first: [rule for rule in rules if rule[0].endswith((":null", ":merge"))]
            for first, rules in self.yaml_implicit_resolvers.items()
        }
        self._sizes, self._values, self._depth = dict[yaml.Node | None, int](), 0, 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        before, self._values = self._values, self._values + 1
        if self.check_event(yaml.AliasEvent):  # of what is not complete: without end
            again = self.anchors.get(self.peek_event().anchor)
            self._values += self._sizes.get(again, MOST_VALUES if again else 0)
        if self._values > MOST_VALUES or self._depth > DEEPEST:
            raise BadSetting(f"settings are at most {MOST_VALUES:,} values, {DEEPEST} levels deep.")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        self._sizes.setdefault(node, self._values - before)
        known = set[str]()
        for name, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if (word := str(name.value)) in known:
                line = name.start_mark.line + 1
                raise BadSetting(f"`{word}` is given twice, the second time in line {line}.")
            known.add(word)
        return node


def parsed(text: str) -> Any:
    """The values of a text in YAML. Raises BadSetting, yaml.YAMLError."""
    return yaml.load(text, _Texts)


def build(kind: type[T], settings: Mapping[str, Any], group: str = "") -> T:
    """A dataclass of ``settings`` by name, of a named ``group``; texts stand for numbers, too.

    Raises BadSetting for an unknown name, InvalidInput for a value that breaks a rule.
    """
    try:
        built: T = _adapter(cast(Any, kind)).validate_python({group: settings})[group]
        return built
    except ValidationError as error:
        # A name that nobody knows may be the one that is missing.
        by_name = sorted(error.errors(), key=lambda each: each["type"] != UNKNOWN)
        raise _mistake(kind, by_name[0]) from None


def require_known(settings: Mapping[str, Any]) -> None:
    """Raise BadSetting for a name that no Config has; a mechanism's follow from its kind."""
    named = {name: value for name, value in settings.items() if name not in ("mechanism", "format")}
    try:
        _adapter(Config).validate_python({"": named})
    except InvalidInput:
        return
    except ValidationError as error:
        for each in error.errors():
            if each["type"] == UNKNOWN:
                raise _mistake(Config, each) from None


def may_become(searched: Mechanism, found: Mechanism) -> bool:
    """Whether a search by open settings (``auto``) finds such a mechanism."""
    known = vars(searched)
    if known["among"] not in (None, found.kind):
        return False
    with suppress(InvalidInput):  # of given settings beside the found ones
        return build(type(found), found.fields() | known["given"], "mechanism") == found
    return False


@cache
def _adapter(kind: Any) -> TypeAdapter[dict[str, Any]]:
    return TypeAdapter(dict[str, kind], config=RULES)


def _mistake(kind: Any, error: ErrorDetails) -> LabelwallError:
    """The error of what pydantic refuses, with the dotted name of the setting in a ``kind``."""
    group, *path = (part for part in error["loc"] if isinstance(part, str))
    words, valid, inner = [group] if group else [], list[str](), [kind]
    for part in path:
        if named := [kind for kind in inner if getattr(kind, "kind", None) == part]:
            inner = named  # says which of several dataclasses it is
            continue
        if not inner:  # inside a value
            break
        valid = [entry.name for kind in inner for entry in fields(kind)]
        hint = get_type_hints(inner[0]).get(part)
        inner = [kind for kind in (hint, *get_args(hint)) if is_dataclass(kind)]
        words.append(part)
    name, rule = ".".join(words), error["msg"].removeprefix("Input should be ")
    rule = rule.partition(", unable")[0]
    if error["type"] == UNKNOWN:
        near = _near(words[-1], {".".join((*words[:-1], one)): one for one in valid})
        if not near and len(words) == 1:  # a setting of a group, which is not named
            every = {name: name.rpartition(".")[2] for name, *_ in settings_of(kind)}
            near = _near(words[-1], every)
        hint = f"Did you mean `{near}`?" if near else f"Valid names: {', '.join(valid)}."
        group, dot, last = words[-1].rpartition(".")
        if dot:  # one word of Python or of a file
            hint = f"Nest it: `{group}: {{{last}: ...}}`, in Python {group}={{'{last}': ...}}."
        if words[0] == "mechanism" and (other := _of_another(words[-1], near)):
            hint = other
        return BadSetting(f"unknown setting `{name}`. {hint}")
    if error["type"] == "union_tag_invalid":
        tags = error["ctx"]["expected_tags"].replace("'", "").split(", ")
        expected = [tag for tag in tags if tag in ANSWERING or tag not in MECHANISMS]
        return InvalidInput(f"{name}.kind", f"one of {', '.join(expected)}", error["ctx"]["tag"])
    if error["type"] == "missing":
        return InvalidInput.missing(name, "it has no default")
    if error["type"] == "string_type" and error["input"] is None:
        return InvalidInput(name, "texts", None, "Quote a word that stands for none: 'null'.")
    rules = {
        "int_parsing_size": "a smaller number",
        "greater_than_equal": f"at least {error.get('ctx', {}).get('ge')}",
        "list_type": "a list, such as '[a, b]'",
        "dataclass_type": "settings by name",
        "invalid_key": "settings by name",
        "union_tag_not_found": "settings by name, with a kind",
    }
    return InvalidInput(name or "--config", rules.get(error["type"], rule), error["input"])


def _of_another(word: str, near: str) -> str:
    """Which mechanisms have a setting of that name, or of a similar one unless one is ``near``."""
    known = {kind: [e.name for e in fields(MECHANISMS[kind])] for kind in ANSWERING}
    every = {name: name for names in known.values() for name in names}
    if not (meant := word if word in every else "" if near else _near(word, every)):
        return ""
    kinds = [kind for kind, names in known.items() if meant in names]
    return f"`mechanism.{meant}` is a setting with --mechanism.kind {listed(kinds)}."


def _near(word: str, names: Mapping[str, str]) -> str:
    """The first of the dotted ``names`` whose last part begins with a word, or is near to it."""
    begins = [part for part in names.values() if part.startswith(word)]
    parts = begins or difflib.get_close_matches(word, names.values(), n=1)
    return next((name for name, part in names.items() if part in parts), "")


def several(rounds: Any, known: Any = None) -> Any:
    """``rounds`` as they are given, or, where that is a number, so many times the first ``known``
    one. Raises InvalidInput.
    """
    if not (count := str(rounds)).isdecimal():
        return rounds
    if len(count) > 2 or int(count) == 0:
        raise InvalidInput("rounds", "a number from 1 to 99, or a list of rounds", rounds)
    return [(known or [{}])[0]] * int(count)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of ``base`` with those that are given ``over`` them; another kind replaces all."""
    known = base.get("kind", DEFAULT_KIND)
    if over.get("kind", known) != known:
        return dict(over)
    inner = {
        name: merged(base[name], value)
        for name, value in over.items()
        if isinstance(value, dict) and isinstance(base.get(name), dict)
    }
    return {**base, **over, **inner}


def config_of(settings: Mapping[str, Any]) -> Config:
    """The Config of settings by name. Raises BadSetting, InvalidInput."""
    number = str(settings.get("format", FORMAT))
    found = int(number) if number.isdecimal() and len(number) < 9 else number
    if refusal := other_format("the configuration", found):
        raise BadSetting(refusal)
    return build(Config, {name: value for name, value in settings.items() if name != "format"})


def load_config(path: Path) -> Config:
    """The Config of a YAML file without overrides, such as a run folder's config.yaml."""
    return config_of(read_settings(str(path)))


def read_settings(file: str) -> dict[str, Any]:
    """The settings of a YAML file. Raises BadSetting."""
    if not Path(file).is_file():
        raise BadSetting(f"`--config` must be an existing YAML file. Found {file!r}.")
    try:
        settings = parsed(Path(file).read_text())
    except BadSetting as error:
        raise BadSetting(f"{file}: {error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadSetting(
            f"`--config` must be a YAML file. Found {' '.join(str(error).split())}"
        ) from error
    if not isinstance(settings, dict | None):
        raise BadSetting(f"`--config` must be a YAML file of settings by name. Found {file!r}.")
    return settings or {}


def explained(kind: Any) -> dict[str, str]:
    means: dict[str, str] = {}
    for base in kind.__mro__:
        for entry in docstring(base.__doc__ or "").params:
            means.setdefault(entry.arg_name, " ".join((entry.description or "").split()))
    return means


def settings_of(kind: Any, group: str = "") -> Iterator[tuple[str, str, Any]]:
    """(dotted name, what it means, default) of each setting of a dataclass of them."""
    means, hints = explained(kind), get_type_hints(kind)
    for entry in fields(kind):
        name, make = f"{group}{entry.name}", entry.default_factory
        default = entry.default if make is MISSING else make()  # MISSING where it has none
        if is_dataclass(hints[entry.name]):
            yield from settings_of(hints[entry.name], f"{name}.")
        elif not is_dataclass(default):  # a mechanism's settings depend on its kind
            yield name, means[entry.name], default


def to_yaml(config: Config | PrivateSide) -> str:
    """The resolved configuration, or a part of it, as YAML that ``load_config`` reads."""
    return yaml.safe_dump({"format": FORMAT, **asdict(config)}, sort_keys=False)


def short_yaml(config: Config) -> str:
    """The budget, and the settings that are not their defaults, each below its explanation."""
    changed = TypeAdapter(Config).dump_python(config, exclude_defaults=True)
    changed["budget"] = asdict(config.budget)
    mechanisms = config.mechanism, *(r.mechanism for r in config.rounds)
    for shown, mechanism in zip((changed, *changed["rounds"]), mechanisms, strict=True):
        if mechanism is not None:  # its kind says which defaults are meant
            shown["mechanism"] = {"kind": mechanism.kind} | shown.get("mechanism", {})
    parts = []
    for name in filter(changed.__contains__, explained(Config)):
        comment = textwrap.wrap(explained(Config)[name], 97)
        text = yaml.safe_dump({name: changed[name]}, sort_keys=False, allow_unicode=True)
        parts.append("".join(f"# {line}\n" for line in comment) + text)
    return "\n".join(parts)
