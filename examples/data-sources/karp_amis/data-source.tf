data "karp_amis" "al2023" {
  ami_selector_terms = [{ alias = "al2023@latest" }]
  kubernetes_version = "1.36"
}

# Pin what is newest today; nodes get another image when you say so.
output "pinned" {
  value = [for ami in data.karp_amis.al2023.amis : { id = ami.id } if ami.variant == "standard"]
}
