"""What all request bodies share: strict, frozen, and the mark of a field that is not served."""

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function


class Off:
    """Accepts null and the values that switch a feature off, and says so in the JSON schema."""

    def __init__(self, *neutral: object) -> None:
        self._neutral = neutral

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"enum": [None, *self._neutral]}

    def _check(self, value: object) -> object:
        if value is None or any(value == other and type(value) is type(other) for other in self._neutral):
            return value
        raise PydanticCustomError("unsupported", "this server does not support it; leave the field out")


def off(*neutral: object) -> Off:
    return Off(*neutral)


class Body(BaseModel):
    """Lists that may be as long as a body fail fast: spelling out millions of faults takes seconds and gigabytes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
