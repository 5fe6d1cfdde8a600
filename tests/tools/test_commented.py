"""DeepSpeed's JSON with comments and trailing commas; others' is refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import isobatch as ib
from isobatch.tools.parse import without_comments

DS = """{
  // our configuration
  "train_micro_batch_size_per_gpu": 16, # a GPU's
  "gradient_accumulation_steps": 4, /* micro-
  batches */
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95,],}},
  "tensorboard": {"output_path": "http://a//b, } # c"},
}
"""


def test_deepspeeds_comments_are_read(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(DS)
    recipe = ib.Recipe.read(path, gpus=1)
    assert (recipe.effective_batch, recipe.lr, recipe.betas) == (64, 3e-3, (0.9, 0.95))
    assert json.loads(without_comments(DS))["tensorboard"]["output_path"] == "http://a//b, } # c"


def test_others_are_told_the_cause(tmp_path):
    path = tmp_path / "args.json"
    path.write_text('{"per_device_train_batch_size": 8, // ours\n "learning_rate": 0.1, "max_steps": 5}')
    with pytest.raises(ib.InputError, match="has comments or trailing commas, which JSON does not have"):
        ib.Recipe.read(path, gpus=1)
    path.write_text('{"train_batch_size": 8, // ours\n "a": }')
    with pytest.raises(ib.InputError, match="cannot be read: Expecting property name"):
        ib.Recipe.read(path, gpus=1)


_JSON = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(_JSON)
def test_plain_json_stays(data):
    assert json.loads(without_comments(json.dumps(data, indent=1))) == data
