"""Messages, state and hooks: what connects decisions and texts to LangChain and LangGraph."""
