# docker build -t transduce .
# docker run -v "$PWD:/data" transduce translate RUN < in.txt         any command; runs and data lie in /data
# docker run -v "$PWD:/data" -p 8000:8000 transduce serve RUN --host 0.0.0.0 --token-file /data/token
# docker run --gpus all ... with --build-arg TORCH=auto               trains on a GPU
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends g++ ffmpeg && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir uv
ARG TORCH=cpu
WORKDIR /src
COPY . .
RUN uv pip install --system --no-cache --torch-backend "$TORCH" --constraint constraints.txt ".[train,serve,wyoming,hub]"
RUN useradd --create-home user && mkdir /data && chown user /data
USER user
WORKDIR /data
EXPOSE 8000
ENTRYPOINT ["transduce"]
