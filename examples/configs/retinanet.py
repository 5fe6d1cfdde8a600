# mmdetection: a configuration that builds on a schedule.
_base_ = "schedule_1x.py"
optim_wrapper = dict(optimizer=dict(lr=0.01))
train_dataloader = dict(batch_size=2)
