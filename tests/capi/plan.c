/* Calls the C ABI as a scheduler would, and prints what comes, for test_capi.py to compare.
 *   plan one FIELD=VALUE...     a line a value
 *   plan columns                two jobs on 1 to 64 GPUs, a line a row
 *   plan wrong                  what is refused, a line each: code, message */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "isobatch.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static int one(int count, char **words) {
  isobatch_pair *given = calloc((size_t)count + 1, sizeof *given);
  for (int i = 0; i < count; i++) {
    char *equals = strchr(words[i], '=');
    *equals = 0;
    given[i] = (isobatch_pair){words[i], equals + 1};
  }
  isobatch_row row;
  char message[200];
  int code = isobatch_plan(given, (size_t)count, &row, message, sizeof message);
  free(given);
  if (code != ISOBATCH_DONE) {
    printf("%d %s\n", code, message);
    return 1;
  }
  printf("status %d\n", row.status);
  for (int bit = 0; isobatch_reason_name(bit); bit++)
    if (row.reasons >> bit & 1) printf("reason %s\n", isobatch_reason_name(bit));
#define WHOLE(name) printf(#name " %" PRId64 "\n", row.name)
#define REAL(name) printf(#name " %.17g\n", row.name)
  WHOLE(world_size); WHOLE(data_parallel); WHOLE(micro_batch); WHOLE(accumulation); WHOLE(effective_batch);
  WHOLE(warmup_steps); WHOLE(steps_per_epoch); WHOLE(total_steps); WHOLE(nearest_world_size); WHOLE(nearest_batch);
  REAL(lr); REAL(lr_scale); REAL(warmup_lr); REAL(min_lr); REAL(beta1); REAL(beta2); REAL(eps); REAL(weight_decay);
  return 0;
}

#define GPUS 64
static int columns(void) {
  const int64_t batches[] = {256, 480};
  const double rates[] = {0.1, 3e-4};
  const char *const optimizers[] = {"sgd", "adamw"};
  const char *const durations[] = {"1000st", "2000st"};
  int64_t nodes[GPUS];
  for (int i = 0; i < GPUS; i++) nodes[i] = i + 1;
  const isobatch_column jobs[] = {{"effective_batch", ISOBATCH_INTS, batches},
                                  {"lr", ISOBATCH_REALS, rates},
                                  {"optimizer", ISOBATCH_TEXTS, optimizers},
                                  {"duration", ISOBATCH_TEXTS, durations}};
  const isobatch_column clusters[] = {{"nodes", ISOBATCH_INTS, nodes}};
  const isobatch_pair shared[] = {{"gpus_per_node", "1"}, {"max_micro_batch", "32"}};
  static uint8_t status[2 * GPUS];
  static uint64_t reasons[2 * GPUS];
  static int32_t micro[2 * GPUS], accumulation[2 * GPUS];
  static int64_t steps[2 * GPUS];
  static double lr[2 * GPUS];
  const isobatch_result results[] = {{"status", status, sizeof status},
                                     {"reasons", reasons, sizeof reasons},
                                     {"micro_batch", micro, sizeof micro},
                                     {"accumulation", accumulation, sizeof accumulation},
                                     {"total_steps", steps, sizeof steps},
                                     {"lr", lr, sizeof lr}};
  char message[200];
  int code = isobatch_plan_columns(jobs, COUNT(jobs), 2, clusters, COUNT(clusters), GPUS, shared, COUNT(shared), results,
                                   COUNT(results), message, sizeof message);
  if (code != ISOBATCH_DONE) {
    printf("%d %s\n", code, message);
    return 1;
  }
  for (int row = 0; row < 2 * GPUS; row++)
    printf("%d %" PRIu64 " %d %d %" PRId64 " %.17g\n", status[row], reasons[row], micro[row], accumulation[row], steps[row], lr[row]);
  return 0;
}

static void wrong_pair(const char *field, const char *value) {
  const isobatch_pair given[] = {{"effective_batch", "256"}, {"lr", "0.1"}, {field, value}};
  isobatch_row row;
  char message[200];
  printf("%d ", isobatch_plan(given, COUNT(given), &row, message, sizeof message));
  printf("%s\n", message);
}

static int wrong(void) {
  wrong_pair("learning", "0.1");
  wrong_pair("optimizer", "adma");
  wrong_pair("warmup", "\xff");
  wrong_pair("lr", "0.2");
  wrong_pair("cluster.lr", "0.2");
  wrong_pair(NULL, "0.2");
  char message[8];
  isobatch_row row;
  printf("%d ", isobatch_plan(NULL, 0, &row, message, sizeof message));
  printf("%s\n", message);
  printf("%d\n", isobatch_plan(NULL, 3, &row, NULL, 0));
  const isobatch_pair good[] = {{"effective_batch", "256"}, {"lr", "0.1"}};
  printf("%d\n", isobatch_plan(good, COUNT(good), NULL, NULL, 0));
  double few[1];
  const int64_t batch[] = {256};
  const double lr[] = {0.1};
  const int64_t nodes[] = {1, 2};
  const isobatch_column jobs[] = {{"effective_batch", ISOBATCH_INTS, batch}, {"lr", ISOBATCH_REALS, lr}};
  const isobatch_column clusters[] = {{"nodes", ISOBATCH_INTS, nodes}};
  const isobatch_result short_one[] = {{"lr", few, sizeof few}}, no_such[] = {{"lrr", few, sizeof few}};
  char text[200];
  printf("%d ", isobatch_plan_columns(jobs, 2, 1, clusters, 1, 2, NULL, 0, short_one, 1, text, sizeof text));
  printf("%s\n", text);
  printf("%d ", isobatch_plan_columns(jobs, 2, 1, clusters, 1, 2, NULL, 0, no_such, 1, text, sizeof text));
  printf("%s\n", text);
  const isobatch_column odd[] = {{"nodes", 7, nodes}};
  printf("%d ", isobatch_plan_columns(jobs, 2, 1, odd, 1, 2, NULL, 0, short_one, 1, text, sizeof text));
  printf("%s\n", text);
  return 0;
}

int main(int count, char **words) {
  if (count > 1 && !strcmp(words[1], "one")) return one(count - 2, words + 2);
  if (count > 1 && !strcmp(words[1], "columns")) return columns();
  if (count > 1 && !strcmp(words[1], "wrong")) return wrong();
  printf("%s\n", isobatch_version());
  return 0;
}
