# A server of encrypted inference, without PyTorch. From the root of the checkout:
#   docker build --file deploy/server.Dockerfile --tag polynext-server .
# /networks holds server folders, which `polynext encrypted prepare` writes; /data holds keys, jobs and answers.

FROM node:22-slim AS page
WORKDIR /src/web
COPY web/package.json web/.npmrc ./
RUN npm install --silent
COPY web ./
RUN npm run --silent build

FROM python:3.13-slim AS wheels
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY native native
COPY polynext polynext
COPY --from=page /src/polynext/service/page polynext/service/page
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . ./native

FROM python:3.13-slim
COPY requirements.txt /tmp/requirements.txt
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --no-cache-dir --constraint /tmp/requirements.txt \
        "polynext[serve] @ file://$(ls /wheels/polynext-*.whl)" /wheels/polynext_native-*.whl \
    && useradd --system --create-home polynext \
    && install --directory --owner polynext /data
USER polynext
WORKDIR /networks
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
# The container's own address: publish the port on 127.0.0.1 and put a TLS proxy in front of it, as compose.yaml does.
ENTRYPOINT ["polynext", "encrypted", "serve", "--host", "0.0.0.0", "--store", "/data"]
CMD ["--help"]
