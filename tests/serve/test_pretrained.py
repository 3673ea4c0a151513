"""`cortado serve` with a GGUF file, and its default sampling."""

import json

from tiny_gguf import write_tiny_gguf


def test_a_gguf_file_is_served_as_its_authors_sample_it(start_server, tmp_path, monkeypatch):
    monkeypatch.setenv("CORTADO_CACHE", str(tmp_path / "cache"))
    own = write_tiny_gguf(tmp_path / "own.Q4_1.gguf", sampling={"temp": 0.0, "top_p": 0.9})
    words = [own, "--model", f"hot={own} --temperature 1 --top-k 3", "--top-p", "0.8"]
    with start_server(*words) as server:
        models = {it["id"]: it["sampling"] for it in json.loads(server.get("/v1/models"))["data"]}
        neutral = {"min_p": 0.0, "repetition_penalty": 1.0}
        assert models == {"own.Q4_1": {**neutral, "temperature": 0.0, "top_k": 0, "top_p": 0.8},
                          "hot": {**neutral, "temperature": 1.0, "top_k": 3, "top_p": 0.8}}  # fmt: skip

        def texts(model, **fields):
            body = {"model": model, "prompt": "abc", "max_tokens": 12, "ignore_eos": True, **fields}
            return {server.post("/v1/completions", {**body, "seed": seed})[1]["choices"][0]["text"] for seed in range(5)}

        assert len(texts("own.Q4_1")) == 1 < len(texts("hot"))
        assert texts("hot", temperature=0) == texts("own.Q4_1") and len(texts("own.Q4_1", temperature=1)) > 1
        reply = server.post("/v1/responses", {"model": "hot", "input": "abc", "max_output_tokens": 1})[1]
        assert (reply["temperature"], reply["top_p"]) == (1.0, 0.8)


def test_options_that_cannot_be_are_refused_before_anything_is_read(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("CORTADO_CACHE", str(tmp_path / "cache"))
    own = write_tiny_gguf(tmp_path / "own.gguf")
    assert "temperature must be" in refused("serve", own, "--temperature", "-1")
    assert "temperature must be" in refused("serve", "--model", f"a={own} --temperature -1")
    assert not (tmp_path / "cache").exists()
