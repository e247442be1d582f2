# docker build -t mmapds . && docker run --rm mmapds : trains a small language model on Python's own source code
FROM python:3.13-slim
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev make \
    && rm -rf /var/lib/apt/lists/* && useradd --create-home trainer
WORKDIR /home/trainer/mmapds
COPY --chown=trainer . .
RUN chown trainer .
USER trainer
RUN make .venv/.demo PYTHON=python3
CMD ["make", "demo"]
