"""The live inventory: a row for every object version, from notifications in Kafka (seed 001) and nothing else."""
