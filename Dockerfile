# labelwall: `docker compose build`.
FROM python:3.11-slim
COPY . /src/labelwall
RUN pip install --no-cache-dir --constraint /src/labelwall/constraints.txt \
        '/src/labelwall[postgresql,service,tables]' \
    && rm -r /src \
    && useradd --uid 1000 labelwall \
    && install -d -m 700 -o labelwall /custody \
    && install -d -o labelwall /runs
USER labelwall
ENV MALLOC_ARENA_MAX=2
WORKDIR /config
ENTRYPOINT ["labelwall"]
CMD ["--help"]
