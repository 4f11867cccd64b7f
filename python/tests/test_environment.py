"""What a run says of its machine."""

from __future__ import annotations

from hakmem import environment


def device(root, name: str, kind: str, features: str) -> None:
    (root / name).mkdir()
    (root / name / "device").write_text(f"{kind}\n")
    (root / name / "features").write_text(f"{features}\n")


def test_a_host_that_takes_free_memory_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "VIRTIO_DEVICES", tmp_path)
    assert "free memory" not in environment.describe()
    device(tmp_path, "virtio0", "0x0001", "1111111111")
    assert "free memory" not in environment.describe()
    device(tmp_path, "virtio1", "0x0005", "0111000000")
    assert "free memory" not in environment.describe()
    (tmp_path / "virtio1" / "features").write_text("0111010000\n")
    assert "goes back to the host" in environment.describe()["free memory"]
