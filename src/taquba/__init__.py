"""Durable queue and workflows for asyncio; all state in one bucket or one folder."""
