-- Health of an InferencePool (tidegate.dev) for Argo CD: resource.customizations.health.tidegate.dev_InferencePool.
-- docs/neighbours.md says where it goes; tests/pure/test_gitops.py runs it over statuses that the operator wrote.
local health = {status = "Progressing", message = "the operator has not seen this generation yet"}
if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return health
end
local found = {}
for _, condition in ipairs(obj.status.conditions or {}) do
  found[condition.type] = condition
end
local ready = found.Ready
if ready == nil then
  return health
end
health.message = ready.reason .. ": " .. (ready.message or "")
if found.Stalled ~= nil and found.Stalled.status == "True" then
  health.status = "Degraded"
  health.message = found.Stalled.reason .. ": " .. (found.Stalled.message or "")
elseif ready.status == "True" then
  health.status = "Healthy"
elseif ready.reason == "Suspended" then
  health.status = "Suspended"
end
return health
