# The arguments of a plan in NVIDIA/Megatron-LM, examples/mixtral/train_mixtral_8x7b_distributed.sh, on 4 nodes.
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py \
  --pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 256 --seq-length 4096 \
  --lr 1e-4 --min-lr 1.0e-5 --lr-decay-style cosine --train-iters 500000 --lr-decay-iters 320000 --lr-warmup-iters 500 \
  --weight-decay 0.1 --clip-grad 1.0 --bf16
