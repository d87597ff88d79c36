"""The limits of a scenario file: for all requests, by class, or a preset's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from mist_sim.errors import brief, did_you_mean, listed
from mist_sim.metrics import Slo
from mist_sim.metrics.goodput import ClassLimits
from mist_sim.scenario.format.families import Settings
from mist_sim.scenario.format.fields import Duration
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.problems import Problem, failure
from mist_sim.scenario.sections.workload import WorkloadSpec
from mist_sim.scenario.slo_presets import slo_preset, slo_preset_names


@dataclass(frozen=True, eq=False)
class LimitsOrPreset(Settings):
    """Marks limits that a file may give by the name of a preset."""

    def read(self, value: object, info: ValidationInfo) -> Part:
        """Return the limits that a value in a file describes."""
        if not isinstance(value, str):
            return super().read(value, info)
        names = slo_preset_names()
        if value not in names:
            hint = did_you_mean(value, names)
            text = f"no preset of limits named {brief(value)}{hint} Known: {', '.join(names)}"
            raise failure([Problem((), text)])
        return super().read(slo_preset(value), info)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        limits = super().__get_pydantic_json_schema__(schema, handler)
        return {"anyOf": [{"enum": slo_preset_names()}, limits]}


_CLASS = Annotated[Part, Settings(part_type(ClassLimits))]
LIMITS = LimitsOrPreset(
    part_type(
        Slo,
        meanings={"classes": dict[str, _CLASS], "at": dict[str, Duration]},
        defaults={"classes": {}, "at": {}},
    )
)


def class_problems(slo: Slo, workload: WorkloadSpec) -> Iterable[Problem]:
    """Yield classes that no request can belong to."""
    for name, limits in slo.classes.items():
        place = ("slo", "classes", name)
        if limits.priority is not None and limits.priority not in workload.known_priorities:
            known = listed(sorted(workload.known_priorities))
            yield Problem(
                (*place, "priority"),
                f"no request has priority {limits.priority}; they have {known}",
            )
        if limits.model is not None and not workload.may_name(limits.model):
            yield Problem((*place, "model"), f"no request names {brief(limits.model)}")
        by_name = limits.priority is None and limits.model is None
        if by_name and name not in workload.classes:
            known = listed(workload.classes) if workload.classes else "none"
            yield Problem(
                place,
                f"no request is of this class; workload.lengths has {known}; or name the priority "
                "or the model of its requests",
            )
