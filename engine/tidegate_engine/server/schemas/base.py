"""What all request bodies share: strict, frozen, and the mark of a field that is not served."""

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


def off(*neutral: object) -> AfterValidator:
    """Accepts null and the values that switch a feature off."""

    def check(value: object) -> object:
        if value is None or any(value == other and type(value) is type(other) for other in neutral):
            return value
        raise PydanticCustomError("unsupported", "this server does not support it; leave the field out")

    return AfterValidator(check)


class Body(BaseModel):
    """Lists that may be as long as a body fail fast: spelling out millions of faults takes seconds and gigabytes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
