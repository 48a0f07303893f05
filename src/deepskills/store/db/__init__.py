"""The database: tables, engines, transactions, and every statement. Rules do not live here."""
