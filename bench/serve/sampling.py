"""What SmolLM2-135M-Instruct answers at one default of sampling or another: how many of short questions it gets right, and
how unlikely it finds its own words (nats a token, of all tokens and at temperature 1).

    .venv/bin/python bench/serve/sampling.py MODEL [--draws 8]

Every question is asked --draws times with the same seeds.
"""

import argparse
import concurrent.futures
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "OpenAI's: temperature 1": {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0},
    "llama.cpp's: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "its card's: temperature 0.2, top-p 0.9": {"temperature": 0.2, "top_k": 0, "top_p": 0.9, "min_p": 0},
    "greedy: temperature 0": {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0},
}
QUESTIONS = {
    "What is the capital of France?": "Paris",
    "What is the capital of Italy?": "Rome",
    "What is the capital of Japan?": "Tokyo",
    "What is the capital of Egypt?": "Cairo",
    "What is the capital of Germany?": "Berlin",
    "What is the capital of Spain?": "Madrid",
    "What is the largest planet of the solar system?": "Jupiter",
    "Which planet is known as the Red Planet?": "Mars",
    "What is the chemical symbol of gold?": "Au",
    "What is the chemical formula of water?": "H2O",
    "Which gas do plants take from the air?": "arbon dioxide",
    "Who wrote Romeo and Juliet?": "Shakespeare",
    "Who painted the Mona Lisa?": "Leonardo",
    "Who developed the theory of relativity?": "Einstein",
    "What is the largest ocean on Earth?": "Pacific",
    "On which continent is Kenya?": "Africa",
    "How many days are there in a week?": "7|seven|Seven",
    "How many legs does a spider have?": "8|eight|Eight",
    "What is the freezing point of water in degrees Celsius?": "0|zero",
    "What language is spoken in Brazil?": "Portuguese",
}


def ask(address, question, seed, sampling):
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 80, "seed": seed, "logprobs": True, **sampling}
    request = urllib.request.Request(address + "/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request) as reply:
        choice = json.load(reply)["choices"][0]
    return choice["message"]["content"], [token["logprob"] for token in choice["logprobs"]["content"]]


def measure(address, sampling, draws):
    asked = [(question, seed) for question in QUESTIONS for seed in range(draws if sampling["temperature"] else 1)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda it: ask(address, *it, sampling), asked))
    right = sum(any(word in text for word in QUESTIONS[question].split("|")) for (question, _), (text, _) in zip(asked, answers))
    scores = [score for _, scores in answers for score in scores]
    return right / len(asked), -sum(scores) / len(scores)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model")
    options.add_argument("--draws", type=int, default=8)
    options = options.parse_args()
    command = [ROOT / "build/release/bin/cortado", "serve", options.model, "--weights", "int8", "--port", "0", "--log", "none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split()[-1]
            print(f"{'':<64} right  nats a token")
            for name, sampling in SETTINGS.items():
                right, nats = measure(address, sampling, options.draws)
                print(f"{name:<64} {right:4.0%}  {nats:.2f}", flush=True)
        finally:
            server.terminate()


if __name__ == "__main__":
    sys.exit(main())
