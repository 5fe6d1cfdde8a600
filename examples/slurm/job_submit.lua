-- Gives each training job the plan for the GPUs that it asks for (slurm.conf: JobSubmitPlugins=lua). A job says which it is in its
-- comment: sbatch --comment isobatch:gpt3-xl …, or isobatch:gpt3-xl@h100 where clusters with as many GPUs have different plans.
--
-- The plans are looked up, not computed: slurmctld waits while this runs. Make the table beforehand, and touch this file when it is
-- new, so that slurmctld reads both again:
--
--   isobatch fleet jobs.csv clusters.csv -o isobatch.tsv \
--     --columns job,cluster,world_size,status,reasons,nearest_world_size,micro_batch,accumulation,lr,warmup_steps,total_steps
--
-- A plan holds for one number of GPUs. A job whose number is open (--nodes 1-2), or would change afterwards (scontrol update), is refused;
-- so are srun and salloc, to which Slurm hands no environment: they are told the words to export. Nothing here raises inside slurmctld:
-- a table that cannot be used refuses the jobs that ask for a plan, and says why.

local TABLE = os.getenv("ISOBATCH_TABLE") or "/etc/slurm/isobatch.tsv"

-- What a job finds in its environment.
local GIVEN = { "world_size", "micro_batch", "accumulation", "lr", "warmup_steps", "total_steps" }
local NEEDED = { "job", "world_size", "status", "reasons", "nearest_world_size", "micro_batch", "accumulation", "lr" }
-- What a change of a job can ask for that is another number of GPUs, or another plan.
local SIZES = { "min_nodes", "max_nodes", "num_tasks", "ntasks_per_node", "ntasks_per_tres" }
local TRES = { "tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket" }
-- Slurm's numbers from here on, of 16 or 32 bits, mean that none was given.
local NO_VALUE, NO_SMALL_VALUE = 4294967294, 65534

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
  return value and value ~= NO_SMALL_VALUE and value < NO_VALUE and value or nil
end

-- Nodes, where a job says one number of them, or is one task; nil where Slurm chooses.
local function nodes_of(job)
  local least, most = number(job.min_nodes), number(job.max_nodes)
  if least or most then
    return least == most and least or nil
  end
  return (number(job.num_tasks) or 1) == 1 and 1 or nil
end

local function gpus_of(job)
  local per_job, per_node, per_task = count(job.tres_per_job), count(job.tres_per_node), count(job.tres_per_task)
  local nodes, tasks = nodes_of(job), number(job.num_tasks)
  return per_job or (per_node and nodes and per_node * nodes) or (per_task and tasks and per_task * tasks)
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

local function recipe_of(comment)
  return tostring(comment or ""):match("^isobatch:(.+)$")
end

-- The plan of a job, or why there is none.
local function plan_of(job, name)
  if not loaded then
    return nil, "no plans: " .. tostring(plans)
  end
  local cluster
  if not plans[name] then -- an id may hold an @ itself
    local before, after = name:match("^(.+)@([^@]+)$")
    name, cluster = before or name, after
  end
  local gpus = gpus_of(job)
  if not gpus then
    return nil, "how many GPUs " .. name .. " gets is open: give --nodes N and --gpus-per-node M, or --gpus"
  end
  local rows = plans[name] and plans[name][gpus]
  if not rows then
    return nil, "no plan for " .. name .. " on " .. gpus .. " GPUs"
  end
  local plan, why = choose(rows, cluster)
  return plan, why and name .. " cannot be trained on " .. gpus .. " GPUs: " .. why
end

local function submit(job)
  local name = recipe_of(job.comment)
  if not name then
    return slurm.SUCCESS
  end
  local plan, why = plan_of(job, name)
  if not plan then
    return refused(why)
  end
  local words = {}
  for _, column in ipairs(GIVEN) do
    if plan[column] then
      local variable = "ISOBATCH_" .. column:upper()
      words[#words + 1] = variable .. "=" .. plan[column]
      if job.script then
        job.environment[variable] = plan[column]
      end
    end
  end
  if not job.script then
    return refused("only sbatch is handed a plan; without the comment: export " .. table.concat(words, " "))
  end
  return slurm.SUCCESS
end

-- A change of a job that has its plan already, or asks for one too late. slurmctld's log has the reason: before Slurm 23.02 no word of a
-- plugin reaches who runs scontrol.
local function modify(job, record)
  local before, after = recipe_of(record.comment), recipe_of(job.comment)
  if after and after ~= before then
    return refused("a plan is given to a job when it is submitted: cancel it, and submit it with this comment")
  end
  if not before then
    return slurm.SUCCESS
  end
  local changed = job.comment and not after
  for _, field in ipairs(SIZES) do
    changed = changed or number(job[field])
  end
  for _, field in ipairs(TRES) do
    changed = changed or job[field]
  end
  if changed then
    return refused("job " .. tostring(record.job_id) .. " has the plan of " .. before .. " for its GPUs: cancel it, and submit it for others")
  end
  return slurm.SUCCESS
end

local function guarded(decide, ...)
  local done, code = pcall(decide, ...)
  return done and code or refused("a fault of the lookup: " .. tostring(code))
end

function slurm_job_submit(job, _partitions, _uid)
  return guarded(submit, job)
end

function slurm_job_modify(job, record, _partitions, _uid)
  return guarded(modify, job, record)
end
