# Two images from one source; neither is published.
#
#     docker build --target operator -t REPOSITORY/tidegate-operator:TAG .     no torch, about 0.3 GB
#     docker build --target engine   -t REPOSITORY/tidegate-engine:TAG .       serves, inspects and fetches models
#
# Packages are those of the lock files, by hash. Both run as user 10001 on a read-only root with a writable /tmp, and are
# started with `python -m tidegate_cli ...`, as the chart and the operator do.

FROM python:3.11-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY engine engine
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim AS operator-packages
RUN python -m venv /opt/venv
COPY requirements-operator.lock /
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --require-hashes -r /requirements-operator.lock
COPY --from=wheel /wheels /wheels
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM python:3.11-slim AS engine-packages
RUN python -m venv /opt/venv
COPY requirements-engine.lock /
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --require-hashes -r /requirements-engine.lock
COPY --from=wheel /wheels /wheels
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM python:3.11-slim AS operator
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 HOME=/tmp
COPY --from=operator-packages /opt/venv /opt/venv
USER 10001:10001
ENTRYPOINT ["python", "-m", "tidegate_cli"]
CMD ["operator"]

FROM python:3.11-slim AS engine
# Triton compiles a small launcher for each kernel with the C compiler it finds.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 HOME=/tmp
COPY --from=engine-packages /opt/venv /opt/venv
USER 10001:10001
EXPOSE 8000 8001
ENTRYPOINT ["python", "-m", "tidegate_cli"]
