-- Gives each training job the plan for the GPUs that it asks for (slurm.conf: JobSubmitPlugins=lua). A job says which it is in its
-- comment: sbatch --comment isobatch:gpt3-xl …
--
-- The plans are looked up, not computed: slurmctld waits while this runs. Make the table beforehand, and touch this file when it is
-- new, so that slurmctld reads both again:
--
--   isobatch fleet jobs.csv clusters.csv -o isobatch.tsv \
--     --columns job,world_size,status,reasons,nearest_world_size,micro_batch,accumulation,lr,warmup_steps,total_steps

local TABLE = os.getenv("ISOBATCH_TABLE") or "/etc/slurm/isobatch.tsv"

-- What a job finds in its environment.
local GIVEN = { "micro_batch", "accumulation", "lr", "warmup_steps", "total_steps" }

local function cells(line)
  local found = {}
  for cell in (line:gsub("\r$", "") .. "\t"):gmatch("(.-)\t") do
    found[#found + 1] = cell
  end
  return found
end

-- plans[job][GPUs] = { column = text }
local function read(path)
  local file = assert(io.open(path, "r"))
  local names, plans = cells(file:read("*l")), {}
  for line in file:lines() do
    local row = {}
    for index, cell in ipairs(cells(line)) do
      row[names[index]] = cell
    end
    local gpus = tonumber(row.world_size)
    if gpus then -- a row that is not legal has none
      plans[row.job] = plans[row.job] or {}
      if plans[row.job][gpus] then
        error(path .. ": " .. row.job .. " has two plans for " .. gpus .. " GPUs")
      end
      plans[row.job][gpus] = row
    end
  end
  file:close()
  return plans
end

local plans = read(TABLE)

-- "gres/gpu:8", "gres/gpu:h100:8", "gres:gpu=8"; without a number it is one
local function count(tres)
  for item in (tres or ""):gmatch("[^,]+") do
    if item:match("^gres[/:]gpu") then
      return tonumber(item:match("[:=](%d+)$")) or 1
    end
  end
end

local function gpus_of(job)
  return count(job.tres_per_job)
    or (count(job.tres_per_node) and count(job.tres_per_node) * job.min_nodes)
    or (count(job.tres_per_task) and count(job.tres_per_task) * job.num_tasks)
end

function slurm_job_submit(job, _partitions, _uid)
  local name = (job.comment or ""):match("^isobatch:(.+)$")
  if not name then
    return slurm.SUCCESS
  end
  local gpus = gpus_of(job)
  local plan = gpus and plans[name] and plans[name][gpus]
  if not plan then
    slurm.log_user("isobatch: no plan for " .. name .. " on " .. (gpus or "no") .. " GPUs")
    return slurm.ERROR
  end
  if plan.status == "infeasible" then
    local try = plan.nearest_world_size ~= "" and "; try " .. plan.nearest_world_size .. " GPUs" or ""
    slurm.log_user("isobatch: " .. name .. " cannot be trained on " .. gpus .. " GPUs: " .. plan.reasons .. try)
    return slurm.ERROR
  end
  for _, column in ipairs(GIVEN) do
    job.environment["ISOBATCH_" .. column:upper()] = plan[column]
  end
  return slurm.SUCCESS
end

function slurm_job_modify(_job, _record, _partitions, _uid)
  return slurm.SUCCESS
end
