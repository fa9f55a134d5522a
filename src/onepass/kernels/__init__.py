"""Everything hand-written, by device: what implements `attention.base.Attention` and `models.layer_ops.LayerOps`."""
