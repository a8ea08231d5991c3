# The Python clients, the command `txnlog` and its housekeeping, without Spark and Java. From the
# checkout's root:
#     docker build -t txnlog .
#     docker run --rm -e TXNLOG_ROOT=s3://bucket/lake txnlog                 # housekeeping
#     docker run --rm -e TXNLOG_ROOT=s3://bucket/lake txnlog topics list
# conf/kubernetes/Dockerfile is the image of Spark's driver and executors.
FROM python:3.12-slim AS build

WORKDIR /src
COPY pyproject.toml README.md LICENSE pyspark_txnlog.py ./
COPY txnlog ./txnlog
COPY spark_source ./spark_source
COPY spark_sink ./spark_sink
COPY checkpoint ./checkpoint
RUN python -m venv /opt/txnlog \
    && /opt/txnlog/bin/pip install --no-cache-dir ".[cli,s3,azure,gcs]"

FROM python:3.12-slim

COPY --from=build /opt/txnlog /opt/txnlog
ENV PATH=/opt/txnlog/bin:$PATH PYTHONUNBUFFERED=1
# A root on a disk is a volume that this user can write; object stores need none.
RUN useradd --uid 10001 --create-home txnlog
USER 10001
WORKDIR /home/txnlog

# SIGTERM ends housekeeping and releases its lease, so that another process takes over at once.
STOPSIGNAL SIGTERM
ENTRYPOINT ["txnlog"]
CMD ["housekeeping"]
