"""No secret of the launch environment reaches a report."""

from __future__ import annotations

from preflight.secrecy import masked


def test_secrets_are_hidden_and_the_rest_is_not() -> None:
    env = {
        "WANDB_API_KEY": "a",
        "HF_TOKEN": "b",
        "aws_secret_access_key": "c",
        "DB_PASSWORD": "d",
        "https_proxy": "http://bob:pw@proxy:3128/",
        "all_proxy": "bob:p@w/x@proxy:1080",
        "UCX_IB_PKEY": "0x8001",
        "NCCL_IB_HCA": "mlx5",
        "TOKENIZERS_PARALLELISM": "true",
    }
    assert masked(env) == {
        "WANDB_API_KEY": "(hidden)",
        "HF_TOKEN": "(hidden)",
        "aws_secret_access_key": "(hidden)",
        "DB_PASSWORD": "(hidden)",
        "https_proxy": "http://(hidden)@proxy:3128/",
        "all_proxy": "(hidden)@proxy:1080",
        "UCX_IB_PKEY": "0x8001",
        "NCCL_IB_HCA": "mlx5",
        "TOKENIZERS_PARALLELISM": "true",
    }
