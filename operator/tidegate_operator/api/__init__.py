"""The InferencePool resource: pydantic models, the CRD generated from them, and the reasons its conditions give."""
