"""Where confluent-kafka's own programs import the serializers for asyncio from."""
