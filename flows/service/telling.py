"""What `bessemer up` prints when the service is up."""

import yaml

from flows.service.files import ServiceFiles, deployments_file


def told_service(files: ServiceFiles) -> str:
    """The UI's address, the deployments, and what to do next."""
    deployments = yaml.safe_load(deployments_file().read_text(encoding="utf-8"))["deployments"]
    width = max(len(deployment["name"]) for deployment in deployments)
    lines = [f"  {deployment['name']:<{width}}  {deployment['description']}" for deployment in deployments]
    of_root = f" --root {files.root}"
    return "\n".join(
        [
            "",
            f"UI            {files.public_url()}/deployments",
            f"password      {files.password_file()} (anyone who has it can run code as you)",
            f"logs          {files.server.log}, {files.worker.log}",
            "deployments   (Run > Custom run opens their form)",
            *lines,
            f"next          bessemer run RECIPE{of_root}     shows its run in the UI",
            f"              bessemer down{of_root}           ends the service",
        ]
    )
