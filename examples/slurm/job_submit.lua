-- Gives each training job the plan for the GPUs that it asks for (slurm.conf: JobSubmitPlugins=lua). A job says which it is in its
-- comment: sbatch --comment isobatch:gpt3-xl …, or isobatch:gpt3-xl@h100 where clusters with as many GPUs have different plans.
--
-- The plans are looked up, not computed: slurmctld waits while this runs. Make the table beforehand, and touch this file when it is
-- new, so that slurmctld reads both again:
--
--   isobatch fleet jobs.csv clusters.csv -o isobatch.tsv \
--     --columns job,cluster,world_size,status,reasons,nearest_world_size,micro_batch,accumulation,lr,warmup_steps,total_steps
--
-- Nothing here raises inside slurmctld: a table that cannot be used refuses the jobs that ask for a plan, and says why.

local TABLE = os.getenv("ISOBATCH_TABLE") or "/etc/slurm/isobatch.tsv"

-- What a job finds in its environment.
local GIVEN = { "micro_batch", "accumulation", "lr", "warmup_steps", "total_steps" }
local NEEDED = { "job", "world_size", "status", "reasons", "nearest_world_size", "micro_batch", "accumulation", "lr" }
-- Slurm's numbers from here on mean that none was given.
local NO_VALUE = 4294967294

local function cells(line)
  local found = {}
  for cell in (line:gsub("\r$", "") .. "\t"):gmatch("(.-)\t") do
    found[#found + 1] = cell
  end
  return found
end

-- plans[job][GPUs] = rows, each { column = text }
local function read(path)
  local file, why = io.open(path, "r")
  if not file then
    error(why, 0)
  end
  local header = (file:read("*l") or ""):gsub("^\239\187\191", "")
  local names, known, plans = cells(header), {}, {}
  for _, name in ipairs(names) do
    known[name] = true
  end
  for _, name in ipairs(NEEDED) do
    if not known[name] then
      file:close()
      error(path .. " has no column " .. name, 0)
    end
  end
  for line in file:lines() do
    local row = {}
    for index, cell in ipairs(cells(line)) do
      row[names[index] or ""] = cell
    end
    local gpus = tonumber(row.world_size)
    if gpus and row.job then -- a row whose cluster is not legal has no GPUs
      plans[row.job] = plans[row.job] or {}
      plans[row.job][gpus] = plans[row.job][gpus] or {}
      table.insert(plans[row.job][gpus], row)
    end
  end
  file:close()
  return plans
end

local loaded, plans = pcall(read, TABLE)

-- "gres/gpu:8", "gres/gpu:h100:8", "gres:gpu=8"; without a number it is one; of several types the sum
local function count(tres)
  local sum
  for item in tostring(tres or ""):gsub("%b()", ""):gmatch("[^,]+") do
    local rest = item:match("^%s*gres[/:]gpu(.*)$")
    if rest and (rest == "" or rest:match("^[:=]")) then
      sum = (sum or 0) + (tonumber(rest:match("[:=](%d+)%s*$")) or 1)
    end
  end
  return sum
end

local function number(value)
  value = tonumber(value)
  return value and value < NO_VALUE and value or nil
end

local function gpus_of(job)
  local per_job, per_node, per_task = count(job.tres_per_job), count(job.tres_per_node), count(job.tres_per_task)
  local tasks = number(job.num_tasks)
  return per_job or (per_node and per_node * (number(job.min_nodes) or 1)) or (per_task and tasks and per_task * tasks)
end

-- One plan for these rows, or why there is none. Rows that give a job the same are one.
local function choose(rows, cluster)
  local plan, other
  for _, row in ipairs(rows) do
    if (not cluster or row.cluster == cluster) and row.status ~= "infeasible" then
      if plan then
        for _, column in ipairs(GIVEN) do
          other = other or row[column] ~= plan[column]
        end
      end
      plan = plan or row
    end
  end
  if other then
    return nil, "several plans; name the cluster by --comment isobatch:NAME@CLUSTER"
  end
  if plan then
    return plan
  end
  for _, row in ipairs(rows) do
    if not cluster or row.cluster == cluster then
      local try = (row.nearest_world_size or "") ~= "" and "; try " .. row.nearest_world_size .. " GPUs" or ""
      return nil, (row.reasons or "") .. try
    end
  end
  return nil, "no plan for cluster " .. cluster
end

local function refused(text)
  slurm.log_user("isobatch: " .. text)
  return slurm.ERROR
end

local function submit(job)
  local name = tostring(job.comment or ""):match("^isobatch:(.+)$")
  if not name then
    return slurm.SUCCESS
  end
  if not loaded then
    return refused("no plans: " .. tostring(plans))
  end
  local cluster
  if not plans[name] then -- an id may hold an @ itself
    local before, after = name:match("^(.+)@([^@]+)$")
    name, cluster = before or name, after
  end
  local gpus = gpus_of(job)
  local rows = gpus and plans[name] and plans[name][gpus]
  if not rows then
    return refused("no plan for " .. name .. " on " .. (gpus or "no") .. " GPUs")
  end
  local plan, why = choose(rows, cluster)
  if not plan then
    return refused(name .. " cannot be trained on " .. gpus .. " GPUs: " .. why)
  end
  for _, column in ipairs(GIVEN) do
    if plan[column] and job.environment then
      job.environment["ISOBATCH_" .. column:upper()] = plan[column]
    end
  end
  return slurm.SUCCESS
end

function slurm_job_submit(job, _partitions, _uid)
  local done, code = pcall(submit, job)
  return done and code or refused("a fault of the lookup: " .. tostring(code))
end

function slurm_job_modify(_job, _record, _partitions, _uid)
  return slurm.SUCCESS
end
