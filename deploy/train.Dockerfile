# Training and everything else, on CPUs or NVIDIA GPUs. From the root of the checkout:
#   docker build --file deploy/train.Dockerfile --tag polynext .
#   docker run --gpus all --shm-size 8g --volume "$PWD/runs:/home/polynext/runs" polynext train digits

FROM python:3.13-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml requirements.txt README.md LICENSE ./
COPY native native
COPY polynext polynext
# g++ stays: PyTorch's compiler uses it on CPUs.
RUN pip install --no-cache-dir --constraint requirements.txt ".[all]" ./native \
    && useradd --create-home polynext
USER polynext
WORKDIR /home/polynext
ENTRYPOINT ["polynext"]
CMD ["--help"]
