"""How tests start Chromium."""

FLAGS = [
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
    "--no-sandbox",  # Chromium refuses to run its sandbox as root
]  # fmt: skip
