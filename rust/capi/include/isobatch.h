/* isobatch: plans of batch sizes and learning rates, for schedulers that are not in Python.
 *
 * Every value goes in as a text under the name of its field, as in a recipe's file or `--set`; docs/planning.md lists fields,
 * settings and what is legal. There are no profiles here: forecasts of time, memory and cost, and policy goodput, are Python's.
 * A schedule's text is carried, not checked.
 *
 * All functions may be called from any thread. isobatch_plan_columns works on a pool of threads of its own
 * (RAYON_NUM_THREADS sets their number); after a fork, the child must not call it if the parent has.
 */
#ifndef ISOBATCH_H
#define ISOBATCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return. A plan that cannot be is an answer too, with its status and reasons: the code is then ISOBATCH_DONE. */
#define ISOBATCH_DONE 0
#define ISOBATCH_WRONG 1   /* the call cannot be: a null, a size, a text that is no UTF-8, a field twice */
#define ISOBATCH_UNKNOWN 2 /* there is no such field or result column */
#define ISOBATCH_ILLEGAL 3 /* a value that its field cannot have */
#define ISOBATCH_FAULT 4   /* a fault of isobatch itself */

/* A plan's status. */
#define ISOBATCH_OK 0
#define ISOBATCH_CAUTION 1
#define ISOBATCH_INFEASIBLE 2

/* A field and its value. A name is a recipe's, else the cluster's, else a setting's; `cluster.model_parallel` is the cluster's,
 * `model_parallel` the recipe's. A null value is unknown. */
typedef struct {
  const char *field;
  const char *value;
} isobatch_pair;

/* A plan. Counts that are not known are -1, reals NaN. */
typedef struct {
  int status;
  uint64_t reasons; /* a bit for each reason: isobatch_reason_name */
  int64_t world_size;
  int64_t data_parallel;
  int64_t micro_batch;
  int64_t accumulation;
  int64_t effective_batch;
  int64_t warmup_steps;
  int64_t steps_per_epoch;
  int64_t total_steps;
  int64_t nearest_world_size; /* of an infeasible plan: what would work */
  int64_t nearest_batch;
  double lr;
  double lr_scale;
  double warmup_lr; /* where the warmup starts */
  double min_lr;    /* where the schedule ends */
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
} isobatch_row;

/* A column of a table. By `kind`, `values` leads to one value a row:
 *   ISOBATCH_INTS   int64_t, INT64_MIN where unknown
 *   ISOBATCH_REALS  double, NaN where unknown
 *   ISOBATCH_TEXTS  const char *, null where unknown */
#define ISOBATCH_INTS 0
#define ISOBATCH_REALS 1
#define ISOBATCH_TEXTS 2
typedef struct {
  const char *field;
  int kind;
  const void *values;
} isobatch_column;

/* A column of the result, by its name in docs/fleet.md: memory for one value a row. `bytes` must be rows x the size of
 * the column's type: status uint8_t; reasons uint64_t; micro_batch and accumulation int32_t; other counts int64_t; reals double.
 * The memory must be aligned for its type, and the columns' must not overlap. */
typedef struct {
  const char *column;
  void *values;
  size_t bytes;
} isobatch_result;

const char *isobatch_version(void);

/* The name and the text of the reason with this bit (from 0); null behind the last. Names and bits stay from version to version. */
const char *isobatch_reason_name(int bit);
const char *isobatch_reason_text(int bit);

/* Plans one job: `count` pairs with at least effective_batch and lr of the recipe, and nodes and gpus_per_node of the cluster (by
 * default 1 and 8). `row` is written where ISOBATCH_DONE is returned. `message` may be null; else up to `room` bytes are written
 * there, what is wrong and a zero. */
int isobatch_plan(const isobatch_pair *given, size_t count, isobatch_row *row, char *message, size_t room);

/* Plans every job on every cluster. Row j * cluster_rows + c of each result is job j on cluster c. `shared` holds for all rows;
 * a column wins over it. A row whose own values are illegal has its reason and stops no other. A wrong name, size or shared
 * value is an error, and nothing is planned. */
int isobatch_plan_columns(const isobatch_column *jobs, size_t job_columns, size_t job_rows,
                          const isobatch_column *clusters, size_t cluster_columns, size_t cluster_rows,
                          const isobatch_pair *shared, size_t shared_count,
                          const isobatch_result *results, size_t result_count, char *message, size_t room);

#ifdef __cplusplus
}
#endif

#endif
